package watch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] // the other one uses the real clock
	goleak.VerifyTestMain(m)
}

var _ cache.TransformingStore = (*Store[*corev1.ConfigMap, string])(nil)

// journal records the notifications of a Store.
type journal struct {
	lines  []string
	synced int
}

// newStore keeps the key "kept" of ConfigMaps that have one.
func newStore(j *journal) *Store[*corev1.ConfigMap, string] {
	text := func(s *string) string {
		if s == nil {
			return "-"
		}
		return *s
	}
	return New(Kind[*corev1.ConfigMap, string]{
		Resource: "configmaps", New: &corev1.ConfigMap{},
		Record: func(c *corev1.ConfigMap) (string, bool) {
			kept, ok := c.Data["kept"]
			return kept, ok
		},
		Changed: func(key Key, before, now *string) {
			j.lines = append(j.lines, fmt.Sprintf("%s %s %s", key, text(before), text(now)))
		},
		Synced: func() { j.synced++ },
	})
}

func object(name, kept string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	if kept != "" {
		c.Data = map[string]string{"kept": kept}
	}
	return c
}

func TestStore(t *testing.T) {
	tests := map[string]struct {
		do   func(s *Store[*corev1.ConfigMap, string]) error
		want []string
	}{
		"added":         {func(s *Store[*corev1.ConfigMap, string]) error { return s.Add(object("b", "2")) }, []string{"shop/b - 2"}},
		"changed":       {func(s *Store[*corev1.ConfigMap, string]) error { return s.Update(object("a", "2")) }, []string{"shop/a 1 2"}},
		"deleted":       {func(s *Store[*corev1.ConfigMap, string]) error { return s.Delete(object("a", "1")) }, []string{"shop/a 1 -"}},
		"never there":   {func(s *Store[*corev1.ConfigMap, string]) error { return s.Delete(object("b", "1")) }, nil},
		"not recorded":  {func(s *Store[*corev1.ConfigMap, string]) error { return s.Add(object("b", "")) }, nil},
		"recorded then": {func(s *Store[*corev1.ConfigMap, string]) error { return s.Update(object("a", "")) }, []string{"shop/a 1 -"}},
		"equal": {func(s *Store[*corev1.ConfigMap, string]) error {
			c := object("a", "1")
			c.Labels = map[string]string{"other": "x"}
			return s.Update(c)
		}, nil},
		"events were lost": {func(s *Store[*corev1.ConfigMap, string]) error {
			return s.Replace([]any{object("b", "2"), object("c", "")}, "7")
		}, []string{"shop/b - 2", "shop/a 1 -"}},
		"all were deleted": {func(s *Store[*corev1.ConfigMap, string]) error { return s.Replace(nil, "7") }, []string{"shop/a 1 -"}},
		"replaced by trimmed ones": {func(s *Store[*corev1.ConfigMap, string]) error {
			t, err := s.Transformer()(object("a", "3"))
			if err != nil {
				return err
			}
			return s.Replace([]any{t}, "7")
		}, []string{"shop/a 1 3"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			j := &journal{}
			s := newStore(j)
			if err := s.Replace([]any{object("a", "1")}, "1"); err != nil {
				t.Fatal(err)
			}
			j.lines = nil
			if err := tc.do(s); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(j.lines, tc.want) {
				t.Errorf("changes %q, want %q", j.lines, tc.want)
			}
			if j.synced != 1 {
				t.Errorf("Synced was called %d times, want once", j.synced)
			}
			for _, line := range j.lines {
				parts := strings.Fields(line)
				_, key, _ := strings.Cut(parts[0], "/")
				if got := s.Get(Key{Namespace: "shop", Name: key}); got == nil != (parts[2] == "-") {
					t.Errorf("Get(%s) = %v after %q", key, got, line)
				}
			}
		})
	}
}

func TestNewest(t *testing.T) {
	at := func(name, version string) *corev1.ConfigMap {
		c := object(name, "1")
		c.ResourceVersion = version
		return c
	}
	tests := map[string]struct {
		do   func(s *Store[*corev1.ConfigMap, string]) error
		want uint64
	}{
		"of a list": {func(*Store[*corev1.ConfigMap, string]) error { return nil }, 90},
		"added":     {func(s *Store[*corev1.ConfigMap, string]) error { return s.Add(at("b", "100")) }, 100},
		"changed":   {func(s *Store[*corev1.ConfigMap, string]) error { return s.Update(at("a", "100")) }, 100},
		"deleted":   {func(s *Store[*corev1.ConfigMap, string]) error { return s.Delete(at("a", "100")) }, 100},
		"not recorded": {func(s *Store[*corev1.ConfigMap, string]) error {
			return s.Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "100"}})
		}, 100},
		"an earlier one":    {func(s *Store[*corev1.ConfigMap, string]) error { return s.Add(at("b", "89")) }, 90},
		"not comparable":    {func(s *Store[*corev1.ConfigMap, string]) error { return s.Add(at("b", "x")) }, 90},
		"etcd was restored": {func(s *Store[*corev1.ConfigMap, string]) error { return s.Replace([]any{at("a", "8")}, "9") }, 8},
		"nothing is left":   {func(s *Store[*corev1.ConfigMap, string]) error { return s.Replace(nil, "100") }, 90},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(&journal{})
			if err := s.Replace([]any{at("a", "90"), at("b", "12")}, "95"); err != nil {
				t.Fatal(err)
			}
			if err := tc.do(s); err != nil {
				t.Fatal(err)
			}
			if s.newest != tc.want {
				t.Errorf("newest %d, want %d", s.newest, tc.want)
			}
		})
	}
}

func TestStoreRefusesOtherTypes(t *testing.T) {
	s := newStore(&journal{})
	if err := s.Add(&corev1.Pod{}); err == nil || err.Error() != "watch configmaps: got a *v1.Pod" {
		t.Errorf("Add() of a Pod = %v", err)
	}
	if err := s.Replace([]any{&corev1.Pod{}}, ""); err == nil || s.Missing() == nil {
		t.Errorf("Replace() = %v, Missing() = %v", err, s.Missing())
	}
}

// A caller that waits for the first objects gets the reason if they do not arrive.
func TestMissingSaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(&journal{})
		s.kind.Client = withoutKind(t, func() {})
		if err := s.Missing(); err == nil || err.Error() != "configmaps: not read yet" {
			t.Errorf("Missing() = %v", err)
		}
		done, began := make(chan error), time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		const want = "the server could not find the requested resource"
		if err := s.Missing(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Missing() = %v, want %q in it", err, want)
		}
		first := s.Lost()
		if first.Err == nil || !strings.HasPrefix(first.Err.Error(), "configmaps: ") || !strings.Contains(first.Err.Error(), want) || !first.Since.Equal(began) {
			t.Errorf("Lost() = %v, want since %s", first, began)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if err := s.Replace(nil, ""); err != nil || s.Missing() != nil {
			t.Errorf("Replace() = %v, Missing() = %v", err, s.Missing())
		}
	})
}

// A loss begins with the first failed request, and ends with the first successful one.
func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods, nodes := newStore(&journal{}), newStore(&journal{})
		away, since := errors.New("connection refused"), time.Now()
		pods.note(away)
		<-time.After(time.Minute)
		pods.note(away)
		nodes.note(away)
		if got := First(Loss{}, nodes.Lost(), pods.Lost()); !got.Since.Equal(since) || !errors.Is(got.Err, away) {
			t.Errorf("First() = %v, want since %s", got, since)
		}
		pods.note(nil)
		if got := First(nodes.Lost(), pods.Lost()); !got.Since.Equal(since.Add(time.Minute)) {
			t.Errorf("First() = %v, want the other one's", got)
		}
		nodes.note(nil)
		if got := First(nodes.Lost(), pods.Lost()); got.Err != nil || !got.Since.IsZero() {
			t.Errorf("First() = %v, want none", got)
		}
	})
}
