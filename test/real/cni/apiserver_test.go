package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const redirection = `{"excludeInboundPorts":[9000],"metricsPort":5670,"families":"dualstack"}`

func uidOf(name string) string { return "uid-of-" + name }

// apiServer serves the daemon's requests. A list returns the current objects and a watch returns no events, so the
// daemon must get new pods by name.
type apiServer struct {
	url string

	mu        sync.Mutex
	pods      map[string]corev1.Pod
	deleted   bool   // the DaemonSet was deleted
	revoked   bool   // the daemon's account was deleted, so that only watches go on
	condition string // the node condition that the daemon wrote last
	// asked is closed when the daemon reads its DaemonSet after revoked, which it does once. Only then does the watch
	// report that the DaemonSet is deleted.
	asked chan struct{}
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{pods: map[string]corev1.Pod{}, asked: make(chan struct{})}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.url = s.URL
	return a
}

func (a *apiServer) kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, a.url), 0o600))
	return path
}

func (a *apiServer) add(name string, inMesh bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod := corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uidOf(name)), ResourceVersion: "1"},
	}
	if inMesh {
		pod.Spec.InitContainers = []corev1.Container{{Name: mesh.ContainerSidecar, Env: []corev1.EnvVar{{Name: mesh.EnvRedirection, Value: redirection}}}}
		pod.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}}
	}
	a.pods[name] = pod
}

func (a *apiServer) deleteDaemonSet() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.deleted = true
}

// deleteAccount deletes the daemon's account, and then the DaemonSet once the daemon was not allowed to read it.
func (a *apiServer) deleteAccount() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revoked = true
}

func (a *apiServer) waitCondition(t *testing.T, status string) error {
	t.Helper()
	return harness.Poll(t.Context(), "the node's condition", func(context.Context) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.condition != status {
			return fmt.Errorf("it is %q, want %q", a.condition, status)
		}
		return nil
	})
}

// ServeHTTP implements http.Handler.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("sendInitialEvents") != "" { // this server supports only lists
		refuse(w, metav1.StatusReasonInvalid, http.StatusUnprocessableEntity)
		return
	}
	if r.URL.Query().Get("watch") != "" {
		a.serveWatch(w, r)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.revoked {
		if strings.Contains(r.URL.Path, "/daemonsets/") {
			close(a.asked)
		}
		refuse(w, metav1.StatusReasonUnauthorized, http.StatusUnauthorized)
		return
	}
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/node1/status":
		a.takeCondition(w, r)
	case r.URL.Path == "/api/v1/pods" && r.URL.Query().Get("fieldSelector") == "spec.nodeName=node1":
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		for _, p := range a.pods {
			list.Items = append(list.Items, p)
		}
		answer(w, &list)
	case strings.HasSuffix(r.URL.Path, "/daemonsets"):
		answer(w, &appsv1.DaemonSetList{
			TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSetList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []appsv1.DaemonSet{*ownDaemonSet("1")},
		})
	case strings.Contains(r.URL.Path, "/daemonsets/") && !a.deleted:
		answer(w, &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
	case strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/shop/pods/") && a.pods[name].Name != "":
		pod := a.pods[name]
		answer(w, &pod)
	default:
		refuse(w, metav1.StatusReasonNotFound, http.StatusNotFound)
	}
}

// serveWatch sends no events, but for the deletion of the DaemonSet.
func (a *apiServer) serveWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	select {
	case <-r.Context().Done():
	case <-a.asked:
		if strings.HasSuffix(r.URL.Path, "/daemonsets") {
			answer(w, map[string]any{"type": "DELETED", "object": ownDaemonSet("2")})
		}
	}
}

func ownDaemonSet(version string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "sonde-system", Name: "sonde-cni", ResourceVersion: version},
	}
}

// takeCondition stores the condition of a patch, which must contain exactly one.
func (a *apiServer) takeCondition(w http.ResponseWriter, r *http.Request) {
	var node corev1.Node
	err := json.NewDecoder(r.Body).Decode(&node)
	if c := node.Status.Conditions; err != nil || len(c) != 1 || c[0].Type != mesh.ConditionCNIReady {
		http.Error(w, "one condition", http.StatusBadRequest)
		return
	}
	a.condition = string(node.Status.Conditions[0].Status)
	answer(w, &node)
}

func refuse(w http.ResponseWriter, reason metav1.StatusReason, code int32) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	s := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Code: code}
	_ = json.NewEncoder(w).Encode(s) // an error means that the client has disconnected
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object) // an error means that the client has disconnected
}
