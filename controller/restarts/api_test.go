package restarts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// api is an API server with pods and grants, as an http.RoundTripper. Watches get each write at once.
type api struct {
	t testing.TB
	r *Restarts

	mu       sync.Mutex
	grants   map[watch.Key]*v1alpha1.RestartGrant
	pods     map[watch.Key]*corev1.Pod
	liveness map[watch.Key]agentv1.ReportedLiveness
	events   []events.Event
	requests []request
	// answer may answer in place of the API server, with a status code; 0 never answers, and -1 leaves the request to
	// the API server.
	answer  func(*http.Request) int
	latency time.Duration
	told    []watch.Key
	// late delays watches of grants while it is set.
	late bool
	// killing are the kubelet's events with reason Killing.
	killing []corev1.Event
	// namespaces to search for pods without a sidecar.
	namespaces map[string]bool
}

// request is a request that the API server received.
type request struct {
	at     time.Time
	what   string // method and resource
	object string
	body   string
}

func newAPI(t testing.TB, settings restartbudget.Settings) *api {
	t.Helper()
	a := &api{t: t, grants: map[watch.Key]*v1alpha1.RestartGrant{}, pods: map[watch.Key]*corev1.Pod{}, liveness: map[watch.Key]agentv1.ReportedLiveness{}}
	config := &rest.Config{Host: "http://api", Transport: a, QPS: -1}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	grants, err := objects.NewClient(config, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.r = New(Options{
		Watching: client, Grants: grants, Writing: grants, Pods: client.CoreV1(), Agents: func() Agents { return podAgents{said: a.said, tell: a.tell} }, Proxy: proxyOf, Settings: settings, Logger: slog.New(slog.DiscardHandler),
		Record: a.record, Namespaces: func() map[string]bool { return a.namespaces }, Lease: watch.Key{Namespace: "sonde-system", Name: "sonde-cp"},
	})
	for _, store := range []interface{ Replace([]any, string) error }{
		a.r.grants, a.r.cluster.pods, a.r.cluster.deployments, a.r.cluster.statefulSets, a.r.cluster.daemonSets, a.r.cluster.disruption, a.r.cluster.budgets,
	} {
		if err := store.Replace(nil, "1"); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a *api) said() map[watch.Key]agentv1.ReportedLiveness {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.liveness)
}

func (a *api) tell(pod watch.Key) { a.told = append(a.told, pod) }

func (a *api) record(e events.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
}

// eventsOf returns the events of a reason, as object and note.
func (a *api) eventsOf(reason string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, e := range a.events {
		if e.Reason == reason {
			all = append(all, e.Kind+" "+e.Name+": "+e.Note)
		}
	}
	return all
}

// deploy creates a Deployment in the namespace shop, with pods name-0, name-1, … that have a guarded container app.
func (a *api) deploy(name string, replicas int) {
	a.t.Helper()
	if err := a.r.cluster.deployments.Add(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u-1"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(replicas))},
	}); err != nil {
		a.t.Fatal(err)
	}
	for i := range replicas {
		p := guardedPod()
		p.Name = fmt.Sprint(name, "-", i)
		p.UID = types.UID("uid-" + p.Name)
		p.Labels = map[string]string{"app": name, "pod-template-hash": "5d4f"}
		p.OwnerReferences[0].Name = name + "-5d4f"
		a.setPod(p)
	}
}

func (a *api) setPod(p *corev1.Pod) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[keyOf(p)] = p.DeepCopy()
	if err := a.r.cluster.pods.Add(p); err != nil {
		a.t.Error(err)
	}
}

func keyOf(o metav1.Object) watch.Key {
	return watch.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// pod returns a pod of the namespace shop, which the caller may change and pass to setPod.
func (a *api) pod(name string) *corev1.Pod {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[watch.Key{Namespace: "shop", Name: name}]
	if p == nil {
		a.t.Fatalf("no pod %s", name)
	}
	return p.DeepCopy()
}

// say sends a report of the agent of a pod in the namespace shop.
func (a *api) say(pod string, m *agentv1.Liveness) {
	a.mu.Lock()
	a.liveness[watch.Key{Namespace: "shop", Name: pod}] = agentv1.ReportedLiveness{Report: m, At: time.Now()}
	a.mu.Unlock()
	a.r.Held("")
}

// asking returns the report of an agent whose containers have just begun to request a restart.
func asking(containers ...string) *agentv1.Liveness {
	m := &agentv1.Liveness{}
	for _, c := range containers {
		m.Held = append(m.Held, &agentv1.HeldLiveness{Container: c})
	}
	return m
}

// fail makes the containers app of these pods request a restart from now on.
func (a *api) fail(pods ...string) {
	for _, name := range pods {
		a.say(name, asking("app"))
	}
}

// pass ends the failures of these pods.
func (a *api) pass(pods ...string) {
	for _, name := range pods {
		a.say(name, &agentv1.Liveness{Passing: []string{"app"}})
	}
}

// put adds a grant to the API.
func (a *api) put(g restartbudget.Grant, pod string, epoch int64) watch.Key {
	a.t.Helper()
	return a.putAt(time.Now(), g, pod, epoch)
}

// putAt adds a grant to the API that was created at that time.
func (a *api) putAt(created time.Time, g restartbudget.Grant, pod string, epoch int64) watch.Key {
	a.t.Helper()
	o := objectOf(g, watch.Key{Namespace: "shop", Name: pod}, epoch)
	o.CreationTimestamp = metav1.NewTime(created)
	o.Status = statusOf(g)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.store(o)
	return keyOf(o)
}

// store stores a grant; the caller holds mu.
func (a *api) store(o *v1alpha1.RestartGrant) {
	if a.grants[keyOf(o)] = o; a.late {
		return
	}
	if err := a.r.grants.Add(o.DeepCopy()); err != nil {
		a.t.Error(err)
	}
}

// all returns the grants, as pod, container, restarts, try, epoch in effect and outcome.
func (a *api) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, g := range a.grants {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %d.%d epoch %d %s",
			g.Spec.Pod, g.Spec.Container, g.Spec.Restarts, g.Spec.Try, max(g.Spec.Epoch, g.Status.Epoch), g.Status.Outcome)))
	}
	slices.Sort(all)
	return all
}

// sent returns the requests, as method and resource.
func (a *api) sent() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// RoundTrip implements http.RoundTripper.
func (a *api) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	i := slices.IndexFunc(parts, func(p string) bool { return p == "restartgrants" || p == "pods" || p == "events" })
	what := request{at: time.Now(), what: r.Method + " " + parts[i], body: string(body)}
	if len(parts) > i+1 {
		what.object = parts[i+1]
	}
	a.mu.Lock()
	a.requests = append(a.requests, what)
	answer, latency := a.answer, a.latency
	a.mu.Unlock()
	if latency > 0 {
		pause := time.NewTimer(latency)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	if answer != nil {
		switch code := answer(r); code {
		case -1:
		case 0:
			<-r.Context().Done()
			return nil, r.Context().Err()
		default:
			return respond(r, code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Message: "no", Reason: reasons[code]})
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if parts[i] == "events" {
		return respond(r, http.StatusOK, corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}, Items: a.killing})
	}
	code, o := a.serve(r.Method, parts[i], what.object, strings.Join(parts[i+1:], "/"), parts[i-1], body)
	return respond(r, code, o)
}

var reasons = map[int]metav1.StatusReason{
	http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonAlreadyExists,
}

func respond(r *http.Request, code int, o any) (*http.Response, error) {
	text, err := json.Marshal(o)
	return &http.Response{
		StatusCode: code, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text)),
	}, err
}

// serve answers a request; the caller holds mu.
func (a *api) serve(method, resource, name, rest, namespace string, body []byte) (int, any) {
	failed := func(code int) (int, any) {
		return code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reasons[code]}
	}
	key := watch.Key{Namespace: namespace, Name: name}
	switch {
	case resource == "pods" && method == http.MethodGet:
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, p := range a.pods {
			if p.Namespace == namespace {
				list.Items = append(list.Items, *p)
			}
		}
		return http.StatusOK, list
	case resource == "pods":
		return a.patchPod(key, body)
	case method == http.MethodGet:
		list := v1alpha1.RestartGrantList{TypeMeta: metav1.TypeMeta{Kind: "RestartGrantList", APIVersion: "sonde.dev/v1alpha1"}}
		for _, g := range a.grants {
			list.Items = append(list.Items, *g)
		}
		return http.StatusOK, list
	case method == http.MethodPost:
		var g v1alpha1.RestartGrant
		if err := json.Unmarshal(body, &g); err != nil {
			a.t.Error(err)
		}
		if a.grants[keyOf(&g)] != nil {
			return failed(http.StatusConflict)
		}
		g.TypeMeta, g.Status = metav1.TypeMeta{Kind: "RestartGrant", APIVersion: "sonde.dev/v1alpha1"}, v1alpha1.RestartGrantStatus{}
		a.store(&g)
		return http.StatusCreated, &g
	}
	g := a.grants[key]
	if g == nil {
		return failed(http.StatusNotFound)
	}
	if method == http.MethodDelete {
		delete(a.grants, key)
		if err := a.r.grants.Delete(g); err != nil {
			a.t.Error(err)
		}
		return http.StatusOK, g
	}
	if rest != name+"/status" {
		a.t.Errorf("%s of %s", method, rest)
	}
	patched := &v1alpha1.RestartGrant{}
	a.patch(g, patched, body, jsonpatch.MergePatch)
	a.store(patched)
	return http.StatusOK, patched
}

// patchPod patches a pod; the caller holds mu.
func (a *api) patchPod(key watch.Key, body []byte) (int, any) {
	p := a.pods[key]
	if p == nil {
		return http.StatusNotFound, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
	}
	patched := &corev1.Pod{}
	a.patch(p, patched, body, func(o, patch []byte) ([]byte, error) {
		return strategicpatch.StrategicMergePatch(o, patch, corev1.Pod{})
	})
	if patched.UID != p.UID {
		return http.StatusConflict, &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusConflict, Reason: metav1.StatusReasonConflict}
	}
	a.pods[key] = patched
	if err := a.r.cluster.pods.Add(patched.DeepCopy()); err != nil {
		a.t.Error(err)
	}
	return http.StatusOK, patched
}

func (a *api) patch(before, after any, patch []byte, apply func(o, patch []byte) ([]byte, error)) {
	text, err := json.Marshal(before)
	if err == nil {
		text, err = apply(text, patch)
	}
	if err == nil {
		err = json.Unmarshal(text, after)
	}
	if err != nil {
		a.t.Error(err)
	}
}
