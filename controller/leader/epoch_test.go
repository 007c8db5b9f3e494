package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordination "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// now is the Unix time at which a bubble's clock starts.
const now = 946684800

// take acquires the Lease of client, as LeaseLock does, and returns the epoch.
func take(t *testing.T, client *leases, last int64) (int64, error) {
	t.Helper()
	var refused error
	e := &epochs{LeaseInterface: client, o: options(client, "a"), last: last, refuse: func(err error) { refused = err }}
	e.o.OldSecret = SecretName
	lease, err := e.Get(t.Context(), LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		lease = &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: LeaseName}}
	}
	lease.Spec.HolderIdentity = new("a")
	if err == nil {
		_, err = e.Update(t.Context(), lease, metav1.UpdateOptions{})
	} else {
		_, err = e.Create(t.Context(), lease, metav1.CreateOptions{})
	}
	if refused != nil && !errors.Is(err, refused) {
		t.Errorf("error %v, rejected for %v", err, refused)
	}
	return e.epoch, err
}

func TestTakeEpoch(t *testing.T) {
	const most = "9007199254740992"
	forbidden := apierrors.NewForbidden(corev1.Resource("secrets"), "sonde-leader", errors.New("no right"))
	secret := func(text string) func() ([]byte, error) { return func() ([]byte, error) { return []byte(text), nil } }
	broken := func(err error) func() ([]byte, error) { return func() ([]byte, error) { return nil, err } }
	tests := map[string]struct {
		kept  string                 // annotation of the Lease; "" without a Lease
		old   func() ([]byte, error) // nil without a secret
		least int64
		want  int64
		err   string
	}{
		"the first":                                   {want: now},
		"after an earlier one":                        {kept: "7", want: now},
		"after one of a faster clock":                 {kept: strconv.Itoa(now + 10), want: now + 11},
		"after one of this second":                    {kept: strconv.Itoa(now), want: now + 1},
		"deleted, and this replica knows a later one": {least: now + 20, want: now + 21},
		"older than what this replica knows":          {kept: strconv.Itoa(now + 10), least: now + 20, want: now + 21},
		"after an earlier release's":                  {old: secret(fmt.Sprintf(`{"epoch": %d, "replica": "b"}`, now+10)), want: now + 11},
		"before a rolled back release's":              {kept: strconv.Itoa(now + 10), old: secret(fmt.Sprintf(`{"epoch": %d}`, now+20)), want: now + 21},
		"after a rolled back release's":               {kept: strconv.Itoa(now + 20), old: secret(fmt.Sprintf(`{"epoch": %d}`, now+10)), want: now + 21},
		"without the right to the old one":            {old: broken(forbidden), want: now},

		"zero":              {kept: "0", err: `take epoch: read Lease "sonde-cp": annotation sonde.dev/epoch: 0: must be from 1 to ` + most},
		"negative":          {kept: "-1", err: "annotation sonde.dev/epoch: -1: must be from 1 to " + most},
		"too large":         {kept: "9007199254740993", err: "annotation sonde.dev/epoch: 9007199254740993: must be from 1 to " + most},
		"much too large":    {kept: "1e60", err: `annotation sonde.dev/epoch: "1e60": must be an integer from 1 to ` + most},
		"the last one":      {kept: most, err: "take epoch: 9007199254740993: must be from 1 to " + most},
		"garbage":           {kept: "\x00\xff", err: `annotation sonde.dev/epoch: "\x00\xff": must be an integer`},
		"old one zero":      {old: secret(`{"epoch": 0}`), err: `take epoch: read secret "leader": epoch: 0: must be from 1 to ` + most},
		"old one nothing":   {old: secret(`{}`), err: `read secret "leader": epoch: 0: must be from 1`},
		"old one no number": {old: secret(`{"epoch": "soon"}`), err: `read secret "leader": epoch: `},
		"old one garbage":   {old: secret("\x00\xff"), err: `read secret "leader": epoch: `},
		"old one unread":    {old: broken(errAway), err: `read secret "leader": connection refused`},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			client := &leases{old: tc.old}
			if tc.kept != "" {
				client.annotate(tc.kept)
			}
			got, err := take(t, client, tc.least)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) || client.epoch() != tc.kept || client.holder() != "" {
					t.Errorf("epoch %d, %v with %q kept, holder %q, want %q", got, err, client.epoch(), client.holder(), tc.err)
				}
				return
			}
			if err != nil || got != tc.want || client.epoch() != strconv.FormatInt(tc.want, 10) || client.holder() != "a" {
				t.Errorf("epoch %d, %v with %q kept, holder %q, want %d", got, err, client.epoch(), client.holder(), tc.want)
			}
		})
	}
}

// The Lease and its epoch are one write: a replica that loses the Lease has taken no epoch.
func TestTakeEpochWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		client.annotate("7")
		client.before = func() {
			client.before = nil
			lease := client.lease.DeepCopy()
			lease.Spec.HolderIdentity = new("b")
			lease.Annotations[AnnotationEpoch] = strconv.Itoa(now + 10)
			client.put(lease)
		}
		if got, err := take(t, client, 0); !apierrors.IsConflict(err) || got != 0 || client.holder() != "b" || client.epoch() != strconv.Itoa(now+10) {
			t.Errorf("epoch %d, %v, %q has the Lease with %q, want a conflict", got, err, client.holder(), client.epoch())
		}
		if got, err := take(t, client, 0); err != nil || got != now+11 {
			t.Errorf("epoch %d, %v, want the one after b's", got, err)
		}
	})
}

// TestWithoutEpoch checks that a replica that cannot take an epoch does not lead, logs it, lets others try, and leads
// once it can.
func TestWithoutEpoch(t *testing.T) {
	tests := map[string]struct{ spoil, repair func(*leases) }{
		"the annotation is bad": {func(l *leases) { l.annotate("0") }, func(l *leases) { l.annotate("") }},
		"the old secret is bad": {
			func(l *leases) { l.old = func() ([]byte, error) { return []byte(`{"epoch": 0}`), nil } },
			func(l *leases) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.old = nil
			},
		},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			client := &leases{}
			tc.spoil(client)
			epochs := make(chan int64, 1)
			var log bytes.Buffer
			o := options(client, "a")
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			o.Tasks = []Task{func(ctx context.Context, epoch int64) error {
				epochs <- epoch
				<-ctx.Done()
				return nil
			}}
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, o) }()
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if holder := client.holder(); len(epochs) != 0 || holder != "" {
				t.Errorf("%d tasks run, %q has the Lease, want none without an epoch", len(epochs), holder)
			}
			if n := strings.Count(log.String(), "level=ERROR msg=\"not leading: no valid epoch"); n < 10 || n > 35 {
				t.Errorf("it tried %d times in 5 minutes, and logs:\n%s", n, &log)
			}
			tc.repair(client)
			time.Sleep(restPeriod + 2*usual.Retry)
			synctest.Wait()
			if len(epochs) != 1 {
				t.Fatal("it does not lead, although it can")
			}
			epoch := <-epochs
			if want := fmt.Sprintf("msg=leading replica=a epoch=%d", epoch); !strings.Contains(log.String(), want) || client.epoch() != strconv.FormatInt(epoch, 10) {
				t.Errorf("the Lease has %q; no %q in\n%s", client.epoch(), want, &log)
			}
			end()
			if err := <-done; err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
	}
}

// TestEpochsOfTerms has a replica lead three times: each term has a greater epoch, which stays in the Lease for the
// whole term, even if the Lease is deleted.
func TestEpochsOfTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &leases{}
		epochs := make(chan int64, 10)
		o := options(client, "a")
		o.Tasks = []Task{func(ctx context.Context, epoch int64) error {
			epochs <- epoch
			<-ctx.Done()
			return nil
		}}
		client.annotate(strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)) // written by a clock that is ahead
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		var last int64
		has := func(what string) {
			t.Helper()
			if client.epoch() != strconv.FormatInt(last, 10) || client.holder() != "a" {
				t.Errorf("%s: %q has the Lease with %q, want a and %d", what, client.holder(), client.epoch(), last)
			}
		}
		for range 3 {
			time.Sleep(usual.Lease)
			epoch := <-epochs
			if epoch <= last {
				t.Errorf("epoch %d after %d", epoch, last)
			}
			last = epoch
			has("renewed")
			client.remove()
			time.Sleep(2 * usual.Retry)
			has("deleted")
			client.annotate("")
			time.Sleep(2 * usual.Retry)
			has("its annotation removed")
			client.remove()
			client.away.Store(true)
			time.Sleep(usual.Renew + 2*usual.Retry)
			client.away.Store(false)
		}
		time.Sleep(usual.Lease)
		end()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if client.holder() != "" || client.epoch() == "" {
			t.Errorf("released: %q has the Lease with %q", client.holder(), client.epoch())
		}
	})
}

// If the annotation changes while a replica leads, the leader restores a lower or invalid epoch, and steps down for a
// greater one.
func TestEpochIsChanged(t *testing.T) {
	for name, tc := range map[string]struct {
		kept  string
		terms int
		want  int64
	}{
		"none":      {kept: "", terms: 1, want: now},
		"garbage":   {kept: "soon", terms: 1, want: now},
		"zero":      {kept: "0", terms: 1, want: now},
		"too large": {kept: "9007199254740993", terms: 1, want: now},
		"lower":     {kept: "7", terms: 1, want: now},
		"greater":   {kept: strconv.Itoa(now + 1000), terms: 2, want: now + 1001},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			client := &leases{}
			var terms []int64
			leads := 0
			o := options(client, "a")
			o.Tasks = []Task{func(ctx context.Context, epoch int64) error {
				terms = append(terms, epoch)
				leads++
				<-ctx.Done()
				leads--
				return nil
			}}
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- Run(ctx, o) }()
			time.Sleep(usual.Lease)
			client.annotate(tc.kept)
			time.Sleep(restPeriod + usual.Lease)
			synctest.Wait()
			if leads != 1 || len(terms) != tc.terms || terms[len(terms)-1] != tc.want || client.epoch() != strconv.FormatInt(tc.want, 10) {
				t.Errorf("%d tasks run, of terms %d, and the Lease has %q, want %d terms, and the last of epoch %d", leads, terms, client.epoch(), tc.terms, tc.want)
			}
			end()
			if err := <-done; err != nil {
				t.Errorf("Run() = %v", err)
			}
		})
	}
}
