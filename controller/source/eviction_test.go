package source

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// evictionRequest requests the eviction of a pod of namespace shop.
func evictionRequest(name, pod, uid, requester string, options ...func(*lifecyclev1alpha1.EvictionRequest)) *lifecyclev1alpha1.EvictionRequest {
	r := &lifecyclev1alpha1.EvictionRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: lifecyclev1alpha1.EvictionRequestSpec{
			Target:    lifecyclev1alpha1.EvictionRequestTarget{Pod: &lifecyclev1alpha1.EvictionRequestPodReference{Name: pod, UID: types.UID(uid)}},
			Requester: requester, Intent: lifecyclev1alpha1.EvictionRequestIntentEviction,
		},
	}
	for _, o := range options {
		o(r)
	}
	return r
}

func withdrawn(r *lifecyclev1alpha1.EvictionRequest) {
	r.Spec.Intent = lifecyclev1alpha1.EvictionRequestIntentWithdrawn
}

func ended(kind lifecyclev1alpha1.EvictionConditionType) func(*lifecyclev1alpha1.EvictionRequest) {
	return func(r *lifecyclev1alpha1.EvictionRequest) {
		r.Status.Conditions = []metav1.Condition{{Type: string(kind), Status: metav1.ConditionTrue}}
	}
}

func TestEvictionRequestDrains(t *testing.T) {
	t.Parallel()
	const one, other = "shop.example/drainer", "acme.io/descheduler"
	requests := func(all ...*lifecyclev1alpha1.EvictionRequest) []*lifecyclev1alpha1.EvictionRequest { return all }
	elsewhere := func(r *lifecyclev1alpha1.EvictionRequest) { r.Namespace = "other" }
	tests := map[string]struct {
		requests []*lifecyclev1alpha1.EvictionRequest
		want     string
	}{
		"requested":            {requests(evictionRequest("a", "web", "u", one)), `eviction requested by "shop.example/drainer"`},
		"by two":               {requests(evictionRequest("a", "web", "u", one), evictionRequest("b", "web", "u", other)), `eviction requested by "acme.io/descheduler"`},
		"withdrawn":            {requests(evictionRequest("a", "web", "u", one), evictionRequest("a", "web", "u", one, withdrawn)), ""},
		"withdrawn by one":     {requests(evictionRequest("a", "web", "u", one), evictionRequest("b", "web", "u", other), evictionRequest("b", "web", "u", other, withdrawn)), `eviction requested by "shop.example/drainer"`},
		"failed":               {requests(evictionRequest("a", "web", "u", one, ended(lifecyclev1alpha1.EvictionConditionFailed))), ""},
		"evicted":              {requests(evictionRequest("a", "web", "u", one, ended(lifecyclev1alpha1.EvictionConditionTargetEvicted))), ""},
		"of the pod before it": {requests(evictionRequest("a", "web", "u-0", one)), ""},
		"of another namespace": {requests(evictionRequest("a", "web", "u", one, elsewhere)), ""},
		"of no pod":            {requests(evictionRequest("a", "web", "u", one, func(r *lifecyclev1alpha1.EvictionRequest) { r.Spec.Target.Pod = nil })), ""},
		"a hostile requester": {requests(evictionRequest("a", "web", "u", "\x1b[2J"+strings.Repeat("x", 99))),
			`eviction requested by "\x1b[2J` + strings.Repeat("x", 57) + `…"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder()
			s := newSynced(t, r, node("n"), pod("web", "u", "10.0.0.1", onNode("n")))
			for _, request := range tc.requests {
				s.change(t, request)
			}
			if got := r.dataplane("web.shop").Drain.String(); got != tc.want {
				t.Errorf("drain = %q, want %q", got, tc.want)
			}
			for _, request := range tc.requests {
				s.remove(t, request)
			}
			s.derive()
			if d := r.dataplane("web.shop").Drain; d != nil || len(s.evicting) > 0 {
				t.Errorf("without the requests the drain is %q, and %v remains", d, s.evicting)
			}
		})
	}
}

// An endpoint whose pod is to be evicted gets no new traffic, unless drains of nodes are ignored.
func TestEvictionRequestTakesNewTraffic(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	s := newSynced(t, r, node("n"), pod("web", "u-1", "10.0.0.1", onNode("n")), webService,
		sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady)))
	check := func(when string, want bool) {
		t.Helper()
		if got := r.service(webName).Spec.Endpoints[0].Health.IsReady(); got != want {
			t.Errorf("%s: ready = %t, want %t", when, got, want)
		}
	}
	check("at first", true)
	s.change(t, evictionRequest("a", "web", "u-1", "acme.io/drainer"))
	check("requested", false)
	s.IgnoreNodes(true)
	s.derive()
	check("nodes are no reason", true)
}

// EvictionRequests of a namespace have a share of the memory, and requests beyond it are reported.
func TestEvictionRequestsHaveAShare(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	s := newSynced(t, r, node("n"), pod("web", "u", "10.0.0.1", onNode("n")))
	s.evictions = s.newEvictions(4 * perObject)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		s.change(t, evictionRequest(name, "web-"+name, "u-"+name, "acme.io/drainer"))
	}
	if beyond := s.Problems(); len(s.evicting) == 0 || len(beyond) == 0 || len(s.evicting)+len(beyond) != 5 || beyond[0].Kind != evictionKind {
		t.Errorf("%d requests count, %v are beyond the bound", len(s.evicting), beyond)
	}
}

// lifecycleAPI is an http.RoundTripper that acts as an API server, with or without EvictionRequests. A watch begins
// with one of them.
type lifecycleAPI struct {
	serves  atomic.Bool
	lost    atomic.Bool
	watches atomic.Int32
}

func (a *lifecycleAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(code int, body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: code, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
	}
	text := func(code int, o any) (*http.Response, error) {
		body, err := json.Marshal(o)
		if err != nil {
			return nil, err
		}
		return answer(code, io.NopCloser(bytes.NewReader(body)))
	}
	switch path := r.URL.Path; {
	case a.lost.Load():
		return nil, errors.New("the API server is lost")
	case !strings.HasPrefix(path, "/apis/lifecycle.k8s.io/v1alpha1"): // other kinds are not read yet
		<-r.Context().Done()
		return nil, r.Context().Err()
	case !a.serves.Load():
		return text(http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	case !strings.HasSuffix(path, "/evictionrequests"):
		return text(http.StatusOK, metav1.APIResourceList{APIResources: []metav1.APIResource{{Name: "evictions"}, {Name: "evictionrequests"}}})
	}
	a.watches.Add(1)
	body, events := io.Pipe()
	go func() {
		request := evictionRequest("a", "web", "u", "acme.io/drainer")
		request.Kind, request.APIVersion, request.ResourceVersion = evictionKind, lifecyclev1alpha1.SchemeGroupVersion.String(), "1"
		all := request.DeepCopy()
		all.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		encoder := json.NewEncoder(events)
		_ = encoder.Encode(map[string]any{"type": "ADDED", "object": request}) // an error means that the caller has closed the connection
		_ = encoder.Encode(map[string]any{"type": "BOOKMARK", "object": all})
		<-r.Context().Done()
		_ = events.CloseWithError(r.Context().Err())
	}()
	return answer(http.StatusOK, body)
}

// EvictionRequests are read while the API server serves them. Nothing waits for them, and all are dropped when it no
// longer does.
func TestEvictionRequestsAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &lifecycleAPI{}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "https://api", Transport: api, QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		s := New(Options{Client: client, Builder: newRecorder(), Name: "cluster"})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.followEvictions(ctx) }()
		var got []int // how many are kept, after each turn
		turn := func() {
			synctest.Wait()
			got = append(got, s.evictions.Len())
			time.Sleep(evictionsEvery)
		}
		turn() // not served
		api.serves.Store(true)
		time.Sleep(evictionsEvery)
		turn()
		api.lost.Store(true)
		turn()
		api.lost.Store(false)
		api.serves.Store(false)
		time.Sleep(evictionsEvery)
		turn()
		if diff := cmp.Diff([]int{0, 1, 1, 0}, got); diff != "" || api.watches.Load() != 1 || len(s.evicting) > 0 {
			t.Errorf("kept (-want +got):\n%s\n%d watches, %v remain", diff, api.watches.Load(), s.evicting)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
