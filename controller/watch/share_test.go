package watch

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// aged returns an object created that many seconds after the first, whose record has that many bytes.
func aged(namespace, name string, second, bytes int) *corev1.ConfigMap {
	o := object(name, strings.Repeat("x", bytes))
	o.Namespace, o.CreationTimestamp = namespace, metav1.NewTime(time.Unix(int64(second), 0))
	return o
}

// newShared returns a store with 100 bytes for each namespace. For an object beyond that, it keeps "-".
func newShared(kind Kind[*corev1.ConfigMap, string]) *Store[*corev1.ConfigMap, string] {
	kind.Resource, kind.New = "configmaps", &corev1.ConfigMap{}
	kind.Record = func(c *corev1.ConfigMap) (string, bool) { return c.Data["kept"], true }
	kind.Share = Share[string]{Bytes: 100, Takes: func(s *string) int { return len(*s) }, Beyond: func(*string) string { return "-" }}
	if kind.Changed == nil {
		kind.Changed = func(Key, *string, *string) {}
	}
	return New(kind)
}

// counting returns the objects within their share, sorted.
func (s *Store[O, R]) counting() (all []string) {
	for _, key := range s.Keys() {
		if r, is := any(s.Get(key)).(*string); is && *r != "-" {
			all = append(all, key.String())
		}
	}
	slices.Sort(all)
	return all
}

func TestShare(t *testing.T) {
	tests := map[string]struct {
		objects []*corev1.ConfigMap
		gone    []string
		want    []string
		used    float64
	}{
		"all have room":                        {objects: []*corev1.ConfigMap{aged("a", "1", 1, 20), aged("a", "2", 2, 20)}, want: []string{"a/1", "a/2"}, used: 0.4},
		"the oldest count":                     {objects: []*corev1.ConfigMap{aged("a", "1", 9, 25), aged("a", "2", 8, 25), aged("a", "3", 7, 25), aged("a", "4", 6, 25), aged("a", "5", 5, 25)}, want: []string{"a/2", "a/3", "a/4", "a/5"}},
		"of one age the first by name":         {objects: []*corev1.ConfigMap{aged("a", "5", 1, 25), aged("a", "4", 1, 25), aged("a", "3", 1, 25), aged("a", "2", 1, 25), aged("a", "1", 1, 25)}, want: []string{"a/1", "a/2", "a/3", "a/4"}},
		"another namespace has its own":        {objects: []*corev1.ConfigMap{aged("a", "1", 1, 25), aged("a", "2", 2, 25), aged("a", "3", 3, 25), aged("a", "4", 4, 25), aged("a", "5", 5, 25), aged("b", "1", 6, 25)}, want: []string{"a/1", "a/2", "a/3", "a/4", "b/1"}},
		"no younger one fills a gap":           {objects: []*corev1.ConfigMap{aged("a", "1", 1, 25), aged("a", "2", 2, 25), aged("a", "3", 3, 25), aged("a", "4", 4, 20), aged("a", "5", 5, 10), aged("a", "6", 6, 5)}, want: []string{"a/1", "a/2", "a/3", "a/4"}},
		"one that is too large does not block": {objects: []*corev1.ConfigMap{aged("a", "1", 1, 51), aged("a", "2", 2, 50)}, want: []string{"a/2"}},
		"an older one grows":                   {objects: []*corev1.ConfigMap{aged("a", "1", 1, 5), aged("a", "2", 2, 25), aged("a", "3", 3, 25), aged("a", "4", 4, 25), aged("a", "1", 1, 25), aged("a", "5", 5, 5)}, want: []string{"a/1", "a/2", "a/3", "a/4"}},
		"what has gone makes room":             {objects: []*corev1.ConfigMap{aged("a", "1", 1, 25), aged("a", "2", 2, 25), aged("a", "3", 3, 25), aged("a", "4", 4, 25)}, gone: []string{"1", "2"}, want: []string{"a/3", "a/4"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newShared(Kind[*corev1.ConfigMap, string]{})
			for _, o := range tc.objects {
				if err := s.Add(o); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range tc.gone {
				if err := s.Delete(aged("a", name, 0, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if got := s.counting(); !slices.Equal(got, tc.want) {
				t.Errorf("%q count, want %q", got, tc.want)
			}
			if used := s.Used(); tc.used > 0 && used != tc.used {
				t.Errorf("%v of a share is used, want %v", used, tc.used)
			}
		})
	}
}

// A list is bounded for each namespace while it is read, and the same objects are within the share as if they had
// arrived one by one.
func TestShareOfAList(t *testing.T) {
	var want []string
	for _, streamed := range []bool{false, true} {
		for range 20 {
			s, all := newShared(Kind[*corev1.ConfigMap, string]{}), []any{}
			for _, i := range rand.Perm(50) {
				o := aged("a", fmt.Sprintf("%02d", i), i, 5+i%20)
				if !streamed {
					if err := s.Add(o); err != nil {
						t.Fatal(err)
					}
					continue
				}
				trimmedOne, err := s.Transformer()(o)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, trimmedOne)
			}
			if streamed {
				kept := 0
				for _, o := range all {
					one, _ := o.(*trimmed[string])
					kept += len(*one.record)
				}
				if kept > 100+50 {
					t.Fatalf("%d bytes of the list are kept", kept)
				}
				if err := s.Replace(all, "7"); err != nil {
					t.Fatal(err)
				}
			}
			got := s.counting()
			if want == nil {
				want = got
			}
			if len(got) == 0 || !slices.Equal(got, want) {
				t.Fatalf("streamed %t: %q count, want %q", streamed, got, want)
			}
			if beyond := s.Beyond()["a"]; beyond != 50-len(got) {
				t.Fatalf("%d are beyond, want %d", beyond, 50-len(got))
			}
		}
	}
}

// After a watch has lost events, objects that were deleted meanwhile leave their share to others.
func TestReplacedObjectsMakeRoom(t *testing.T) {
	gaveUp := false
	s := newShared(Kind[*corev1.ConfigMap, string]{Changed: func(_ Key, _, now *string) { gaveUp = gaveUp || now != nil && *now == "-" }})
	listOf := func(prefix string, second int) (all []any) {
		for i := range 3 {
			all = append(all, aged("a", prefix+strconv.Itoa(i), second+i, 25))
		}
		return all
	}
	for _, list := range [][]any{listOf("old-", 0), listOf("new-", 10)} {
		if err := s.Replace(list, "7"); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := s.counting(), []string{"a/new-0", "a/new-1", "a/new-2"}; !slices.Equal(got, want) || gaveUp {
		t.Errorf("%q count, want %q; an object was dropped: %t", got, want, gaveUp)
	}
}

// An object that had room, but is missing from the next list, is not read again.
func TestNothingToFillAfterAList(t *testing.T) {
	s := newShared(Kind[*corev1.ConfigMap, string]{})
	all := []any{aged("a", "1", 1, 40), aged("a", "2", 2, 40), aged("a", "3", 3, 40)}
	if err := s.Replace(all, "7"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(all[0]); err != nil {
		t.Fatal(err)
	}
	if key, found := s.next(); !found || key.Name != "3" {
		t.Fatalf("%v has room, want 3", key)
	}
	s.forgetShares(map[Key]bool{{Namespace: "a", Name: "2"}: true})
	if key, found := s.next(); found {
		t.Errorf("%v is read again although it was deleted", key)
	}
}

// A list that fails halfway leaves nothing in the share for the next attempt.
func TestListThatFails(t *testing.T) {
	s := newShared(Kind[*corev1.ConfigMap, string]{})
	for _, prefix := range []string{"first-", "second-"} { // the first list fails, and its objects no longer exist
		s.beginList()
		var all []any
		for i := range 4 {
			one, err := s.Transformer()(aged("a", prefix+strconv.Itoa(i), i, 25))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, one)
		}
		if prefix == "second-" {
			if err := s.Replace(all, "7"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := s.counting(); len(got) != 4 {
		t.Errorf("%q count, want four", got)
	}
}

// api is an API server that answers lists of a single object, and hangs for one of them.
type api struct {
	mu    sync.Mutex
	all   map[string]*corev1.ConfigMap
	hangs string
}

func (a *api) has(o *corev1.ConfigMap) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[o.Name] = o
}

func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	one := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	if one == a.hangs {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list := &corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}}
	if o := a.all[one]; o != nil {
		list.Items = append(list.Items, *o)
	}
	body, err := runtime.Encode(encoder, list)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(string(body))), Request: r}, err
}

// An object that has room again after deletions is read again, unless a newer version has arrived.
func TestFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := &api{all: map[string]*corev1.ConfigMap{}}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api.invalid", Transport: there, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		s := newShared(Kind[*corev1.ConfigMap, string]{Client: client.CoreV1().RESTClient()})
		var listed []any
		for i := range 8 {
			o := aged("a", strconv.Itoa(i), i, 25)
			o.ResourceVersion = "5"
			there.has(o)
			listed = append(listed, o)
			if err := s.Add(o); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Replace(listed, "5"); err != nil {
			t.Fatal(err)
		}
		go s.fill(t.Context())
		there.has(aged("a", "5", 5, 25)) // older than the version that the store has seen
		for _, gone := range []string{"0", "1", "7"} {
			if err := s.Delete(aged("a", gone, 0, 0)); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Minute)
		if got, want := s.counting(), []string{"a/2", "a/3", "a/4"}; !slices.Equal(got, want) {
			t.Errorf("%q count, want %q", got, want)
		}
		newer := aged("a", "5", 5, 25)
		newer.ResourceVersion = "6"
		there.has(newer)
		<-time.After(time.Minute)
		if got, want := s.counting(), []string{"a/2", "a/3", "a/4", "a/5"}; !slices.Equal(got, want) {
			t.Errorf("%q count, want %q", got, want)
		}
	})
}

// A deleted object, or an API server that does not answer, delays other objects only for the timeout of one read.
func TestFillGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := &api{all: map[string]*corev1.ConfigMap{}, hangs: "b2"}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api.invalid", Transport: there, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		s := newShared(Kind[*corev1.ConfigMap, string]{Client: client.CoreV1().RESTClient()})
		var listed []any
		for _, namespace := range []string{"a", "b", "c"} {
			for i := range 3 {
				o := aged(namespace, namespace+strconv.Itoa(i), i, 40)
				listed = append(listed, o)
				if namespace == "c" {
					there.has(o)
				}
				if err := s.Add(o); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := s.Replace(listed, "5"); err != nil {
			t.Fatal(err)
		}
		for _, gone := range []string{"a", "b", "c"} { // after the first two, the objects that now have room cannot be read
			if err := s.Delete(aged(gone, gone+"0", 0, 0)); err != nil {
				t.Fatal(err)
			}
		}
		go s.fill(t.Context())
		<-time.After(10 * time.Minute)
		if got := s.counting(); !slices.Contains(got, "c/c2") {
			t.Errorf("%q count, want c/c2 as well", got)
		}
	})
}

func TestSize(t *testing.T) {
	type inner struct {
		Text string
		At   *int
	}
	tests := map[string]struct {
		value    any
		from, to int
	}{
		"a text":            {strings.Repeat("x", 1000), 1000, 1016},
		"nothing":           {nil, 0, 0},
		"a time":            {time.Now(), 24, 24},
		"numbers":           {make([]uint32, 1000), 4000, 4024},
		"structures":        {make([]inner, 100), 2400, 2424},
		"what it points at": {&inner{Text: strings.Repeat("x", 100), At: new(int)}, 130, 150},
		"a map of texts":    {map[string]string{"a": strings.Repeat("x", 1000)}, 1200, 1500},
	}
	for name, tc := range tests {
		if got := Size(tc.value); got < tc.from || got > tc.to {
			t.Errorf("%s: %d bytes, want %d to %d", name, got, tc.from, tc.to)
		}
	}
}

var encoder = serializer.NewCodecFactory(scheme.Scheme).LegacyCodec(corev1.SchemeGroupVersion)
