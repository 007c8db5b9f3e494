package restarts

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

var web = restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: "web"}

// patched is an API server that records patches, as NAME BODY. It answers with the remaining codes of a name, and
// then with 200.
type patched struct {
	mu      sync.Mutex
	patches []string
	codes   map[string][]int
}

func (a *patched) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	name := path.Base(strings.TrimSuffix(r.URL.Path, "/status"))
	a.patches = append(a.patches, name+" "+string(body))
	code := http.StatusOK
	if left := a.codes[name]; len(left) > 0 {
		code, a.codes[name] = left[0], left[1:]
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	reasons := map[int]metav1.StatusReason{http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict}
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: reasons[code], Code: int32(code)})
}

// handled is an http.RoundTripper that answers by a handler.
type handled struct{ http.Handler }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	return answer.Result(), nil
}

// take returns the patches since the last call, sorted.
func (a *patched) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.patches
	a.patches = nil
	slices.Sort(taken)
	return taken
}

// newPatching returns a Restarts that writes to a, and whose grants the test sets in place of a watch.
func newPatching(t *testing.T, a *patched) *Restarts {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := &rest.Config{Host: "http://api", Transport: handled{a}, APIPath: "/apis", ContentConfig: rest.ContentConfig{
		GroupVersion: &v1alpha1.GroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
	}}
	writing, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Watching: kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://api", Transport: handled{a}}), Grants: writing, Writing: writing,
		Agents: func() Agents { return podAgents{} }, Proxy: proxyOf, Logger: slog.New(slog.DiscardHandler),
	})
}

// madeGrant returns the grant object of a container app, in a pod whose UID is its name.
func madeGrant(workload restartbudget.WorkloadID, pod string, outcome restartbudget.Outcome) *v1alpha1.RestartGrant {
	at := time.Now().Add(-time.Minute)
	g := restartbudget.Grant{
		ID: restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: pod, Name: "app"}}, Workload: workload, Template: "t", Granted: at, Outcome: outcome,
	}
	if outcome != restartbudget.Open {
		g.Spent, g.Judged, g.Ended = at, at, at
	}
	o := objectOf(g, watch.Key{Namespace: "shop", Name: pod}, 1)
	o.Name, o.Status, o.ResourceVersion = pod, statusOf(g), "5"
	return o
}

func (r *Restarts) put(t *testing.T, all ...*v1alpha1.RestartGrant) {
	t.Helper()
	for _, o := range all {
		if err := r.grants.Add(o); err != nil {
			t.Fatal(err)
		}
	}
}

const releasing = ` {"status":{"outcome":"released"}}`

func TestRelease(t *testing.T) {
	a := &patched{codes: map[string][]int{"web-2": {http.StatusNotFound}}}
	r := newPatching(t, a)
	if _, err := r.Release(t.Context(), web); err == nil || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("Release() before the grants are read: %v", err)
	}
	if err := r.grants.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	r.put(t, madeGrant(web, "web-0", restartbudget.Unhelpful), madeGrant(web, "web-1", restartbudget.Unhelpful), madeGrant(web, "web-2", restartbudget.Unhelpful),
		madeGrant(web, "web-3", restartbudget.Helped), madeGrant(web, "web-4", restartbudget.Released), madeGrant(web, "web-5", restartbudget.Open),
		madeGrant(restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: "api"}, "api-0", restartbudget.Unhelpful))
	if n, err := r.Release(t.Context(), web); n != 2 || err != nil {
		t.Errorf("Release() = %d, %v, want 2: one is deleted already", n, err)
	}
	if diff := cmp.Diff([]string{"web-0" + releasing, "web-1" + releasing, "web-2" + releasing}, a.take()); diff != "" {
		t.Errorf("patches (-want +got):\n%s", diff)
	}
	for name := range 3 {
		a.codes[fmt.Sprint("web-", name)] = []int{http.StatusForbidden}
	}
	if n, err := r.Release(t.Context(), web); n != 0 || err == nil || !strings.Contains(err.Error(), "write the status of RestartGrant shop/web-") {
		t.Errorf("forbidden Release() = %d, %v", n, err)
	}
	if n, err := r.Release(t.Context(), restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: "none"}); n != 0 || err != nil {
		t.Errorf("Release() of a workload without grants = %d, %v", n, err)
	}
}

// leads makes r lead, as Lead does.
func (r *Restarts) leads() *leader {
	all := r.allGrants()
	l := newLeader(r, 1)
	l.state, l.released = restartbudget.Restore(time.Now(), grantsOf(all)), releasedOf(all)
	return l
}

// TestLeaderTakesReleases has another replica release restarts, one grant after the other.
func TestLeaderTakesReleases(t *testing.T) {
	r := newPatching(t, &patched{})
	r.put(t, madeGrant(web, "web-0", restartbudget.Unhelpful), madeGrant(web, "web-1", restartbudget.Unhelpful), madeGrant(web, "web-2", restartbudget.Released))
	l := r.leads()
	l.takeReleases(t.Context())
	if !l.state.Waits(web, "t") {
		t.Fatal("a release from before its term releases later restarts")
	}
	r.put(t, madeGrant(web, "web-0", restartbudget.Released))
	l.takeReleases(t.Context())
	if l.state.Waits(web, "t") || l.state.Unhelpful(web, "t") {
		t.Error("the workload waits after the release")
	}
	l.state = restartbudget.Restore(time.Now(), []restartbudget.Grant{{Workload: web, Template: "t", Outcome: restartbudget.Unhelpful}})
	l.takeReleases(t.Context())
	if !l.state.Unhelpful(web, "t") {
		t.Error("a release counts twice, and covers later restarts that did not help")
	}
}

// TestStatusPatch checks that the leader does not overwrite a release: an unknown release makes the patch fail, or is
// not part of the patch.
func TestStatusPatch(t *testing.T) {
	ended := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tc := range map[string]struct {
		known   restartbudget.Outcome // by the watch
		outcome restartbudget.Outcome
		want    string
	}{
		"it is the first to say so":      {restartbudget.Spent, restartbudget.Unhelpful, `{"metadata":{"resourceVersion":"5"},"status":{"outcome":"unhelpful","ended":"2030-01-02T03:04:05.000000Z"}}`},
		"the API says so":                {restartbudget.Unhelpful, restartbudget.Unhelpful, `{"status":{"ended":"2030-01-02T03:04:05.000000Z"}}`},
		"it is released meanwhile":       {restartbudget.Released, restartbudget.Unhelpful, `{"status":{"ended":"2030-01-02T03:04:05.000000Z"}}`},
		"it is released, and known":      {restartbudget.Released, restartbudget.Released, `{"status":{"outcome":"released","ended":"2030-01-02T03:04:05.000000Z"}}`},
		"only its leader writes it":      {restartbudget.Open, restartbudget.Spent, `{"status":{"outcome":"spent","ended":"2030-01-02T03:04:05.000000Z"}}`},
		"the grant is deleted meanwhile": {"none", restartbudget.Unhelpful, `{"status":{"outcome":"unhelpful","ended":"2030-01-02T03:04:05.000000Z"}}`},
	} {
		r := newPatching(t, &patched{})
		if tc.known != "none" {
			r.put(t, madeGrant(web, "web-0", tc.known))
		}
		got, err := r.statusPatch(watch.Key{Namespace: "shop", Name: "web-0"}, statusOf(restartbudget.Grant{Outcome: tc.outcome, Ended: ended}))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: statusPatch() = %s, %v, want %s", name, got, err, tc.want)
		}
	}
}
