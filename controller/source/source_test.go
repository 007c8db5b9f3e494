package source

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

var webKey = mesh.Key{Kind: mesh.KindService, Mesh: mesh.DefaultMesh, Name: webName}

// The result of a probe changes the slice and the pod's status, but in the view only the Service changes.
func TestReadinessFlipTouchesTheServiceAlone(t *testing.T) {
	r := newRecorder()
	s := newSynced(t, r, pod("web", "u-1", "10.0.0.1"), pod("b", "u-2", "10.0.0.2"), webService,
		sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady), endpoint("10.0.0.2", "b", "u-2", isReady)))
	r.calls = nil
	s.change(t, sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isNotReady), endpoint("10.0.0.2", "b", "u-2", isReady)))
	if diff := cmp.Diff([]mesh.Key{webKey}, r.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	want := []mesh.ServiceEndpoint{proxied("10.0.0.1", 8080, "web", notReady), proxied("10.0.0.2", 8080, "b", nil)}
	if diff := cmp.Diff(want, r.service(webName).Spec.Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	r.calls = nil
	s.change(t, pod("web", "u-1", "10.0.0.1", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	}))
	if len(r.calls) != 0 {
		t.Errorf("the pod's own status: calls %v, want none", r.calls)
	}
}

// Clients must not get an endpoint before its identity, nor lose the identity before the endpoint.
func TestOrderOfCalls(t *testing.T) {
	r := newRecorder()
	web, slice := pod("web", "u-1", "10.0.0.1"), sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady))
	s := newSynced(t, r, webService)
	proxy := mesh.Key{Kind: mesh.KindDataplane, Mesh: mesh.DefaultMesh, Name: "web.shop"}
	r.calls = nil
	s.change(t, slice, web)
	if diff := cmp.Diff([]mesh.Key{proxy, webKey}, r.calls); diff != "" {
		t.Errorf("a new pod: calls (-want +got):\n%s", diff)
	}
	r.calls = nil
	s.remove(t, web)
	s.change(t, sliceOf("web-1", "web", webPorts))
	if diff := cmp.Diff([]mesh.Key{webKey, proxy}, r.calls); diff != "" {
		t.Errorf("a deleted pod: calls (-want +got):\n%s", diff)
	}
}

func TestNothingBeforeEveryKindIsThere(t *testing.T) {
	r := newRecorder()
	s := newSource(t, r)
	s.add(t, pod("web", "u-1", "10.0.0.1"))
	for range 4 {
		s.kindSynced()
		s.derive()
	}
	if len(r.calls) != 0 || r.synced != 0 {
		t.Fatalf("calls %v, synced %d", r.calls, r.synced)
	}
	s.kindSynced()
	s.derive()
	s.derive()
	if len(r.calls) != 1 || r.synced != 1 {
		t.Errorf("calls %v, synced %d", r.calls, r.synced)
	}
}

// After a forced deletion the slice still has the pod as ready, and another pod may get its address at once.
func TestGonePodIsNoEndpoint(t *testing.T) {
	r := newRecorder()
	web, slice := pod("web", "u-1", "10.0.0.1"), sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", isReady))
	s := newSynced(t, r, web, webService, slice)
	s.remove(t, web)
	s.derive()
	if got := r.service(webName).Spec.Endpoints; len(got) != 0 {
		t.Errorf("the endpoint of a deleted pod is %v", got)
	}
	if r.dataplane("web.shop") != nil {
		t.Error("a Dataplane remains")
	}
	s.change(t, pod("web", "u-2", "10.0.0.1")) // as in a StatefulSet
	if got := r.service(webName).Spec.Endpoints; len(got) != 0 {
		t.Errorf("its successor has no slice yet, but is %v", got)
	}
	s.change(t, sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-2", isReady)))
	if got := r.service(webName).Spec.Endpoints; len(got) != 1 || got[0].Dataplane != "web.shop" {
		t.Errorf("its successor is %v", got)
	}
	if len(s.gone) != 0 {
		t.Errorf("kept: %v", s.gone)
	}
}

func TestWhatOthersAreTold(t *testing.T) {
	r := newRecorder()
	s := newSource(t, r)
	var pods, namespaces []string
	s.o.PodChanged = func(key watch.Key, before, now *Pod) {
		switch {
		case before == nil:
			pods = append(pods, "came "+key.Name)
		case now == nil:
			pods = append(pods, "gone "+key.Name)
		}
	}
	s.o.MeshChanged = func(name string) { namespaces = append(namespaces, name) }
	s.sync()
	web := pod("web", "u-1", "10.0.0.1")
	s.change(t, web, web)
	s.remove(t, web)
	if want := []string{"came web", "gone web"}; !slices.Equal(pods, want) {
		t.Errorf("pods %v, want %v", pods, want)
	}
	shop := func(labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: labels}}
	}
	s.change(t, shop(nil), shop(map[string]string{"team": "x"}), shop(map[string]string{mesh.LabelMesh: "prod"}))
	if want := []string{"shop"}; !slices.Equal(namespaces, want) {
		t.Errorf("namespaces %v, want %v", namespaces, want)
	}
	if got := s.Namespace("shop").Mesh(); got != "prod" {
		t.Errorf("mesh %s, want prod", got)
	}
}

// Only the annotations of a namespace that the webhook reads are kept; the others may be large.
func TestAnnotationsOfANamespace(t *testing.T) {
	s := newSynced(t, newRecorder())
	want := map[string]string{mesh.AnnotationGuardedLiveness: "enabled", mesh.AnnotationMeshes: "prod"}
	all := maps.Clone(want)
	all["example.com/other"] = "x"
	s.change(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: all}})
	if got := s.Namespace("shop").Annotations; !maps.Equal(got, want) {
		t.Errorf("annotations %v, want %v", got, want)
	}
}

func TestMissing(t *testing.T) {
	s := newSource(t, newRecorder())
	if err := s.pods.Replace(nil, ""); err != nil {
		t.Fatal(err)
	}
	want := "namespaces: not read yet\nnodes: not read yet\nservices: not read yet\nendpointslices: not read yet"
	if err := s.Missing(); err == nil || err.Error() != want {
		t.Errorf("Missing() = %v, want %s", err, want)
	}
}
