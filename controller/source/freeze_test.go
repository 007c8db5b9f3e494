package source

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// seen is a node of zone a; unseen has a silent kubelet.
func seen(name string) *corev1.Node {
	n := node(name)
	n.Labels = map[string]string{corev1.LabelTopologyZone: "a"}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

func unseen(name string) *corev1.Node { return condition(seen(name), corev1.ConditionUnknown) }

func condition(n *corev1.Node, status corev1.ConditionStatus) *corev1.Node {
	n.Status.Conditions[0].Status = status
	return n
}

// conditions returns the conditions of a pod: ContainersReady, by the kubelet, and Ready.
func conditions(containers, ready corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: containers}, {Type: corev1.PodReady, Status: ready}}
	}
}

var (
	well   = conditions(corev1.ConditionTrue, corev1.ConditionTrue)
	marked = conditions(corev1.ConditionTrue, corev1.ConditionFalse) // by the node controller
	failed = conditions(corev1.ConditionFalse, corev1.ConditionFalse)
)

// frozenTest is a Service web whose only endpoint is pod web-1 on node n of zone a.
type frozenTest struct {
	*Source
	r         *recorder
	connected bool
}

func newFrozenTest(t *testing.T, k Kept) *frozenTest {
	t.Helper()
	f := &frozenTest{r: newRecorder()}
	client, err := newClient()
	if err != nil {
		t.Fatal(err)
	}
	f.Source = New(Options{Client: client, Builder: f.r, Name: "cluster", Connected: func(mesh.ID) bool { return f.connected }})
	for _, o := range []metav1.Object{seen("n"), pod("web-1", "u", "10.0.0.1", onNode("n"), well), serviceOf("web", "10.1.0.1", port("", 80)), f.slice(isReady)} {
		f.add(t, o)
	}
	f.Freeze(k)
	f.sync()
	return f
}

func (*frozenTest) slice(c discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
	return sliceOf("web-x", "web", ports1("", 8080), endpointOn("n", "10.0.0.1", "web-1", "u", c))
}

func endpointOn(node, address, podName, uid string, c discoveryv1.EndpointConditions) discoveryv1.Endpoint {
	e := endpoint(address, podName, uid, c)
	e.NodeName = &node
	return e
}

// state returns the endpoint's state in the mesh.
func (f *frozenTest) state() string {
	s := f.r.service("web_shop_svc_80")
	if s == nil || len(s.Spec.Endpoints) != 1 {
		return "gone"
	}
	e, text := s.Spec.Endpoints[0], "unready"
	switch {
	case e.Health.IsReady():
		text = "ready"
	case e.Health.IsServing():
		text = "draining"
	}
	if e.Frozen {
		text += " frozen"
	}
	return text
}

// settle waits for the time in which an endpoint waits for a verdict.
func (f *frozenTest) settle() {
	<-time.After(settleTime)
	f.recheck()
	f.derive()
}

func TestKept(t *testing.T) {
	gates := func(status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			marked(p)
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "shop.example/warm"}}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "shop.example/warm", Status: status})
		}
	}
	goes := unseen("n")
	goes.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted"}}
	elsewhere := unseen("n")
	elsewhere.Labels[corev1.LabelTopologyZone] = "b"
	noZone := unseen("n")
	noZone.Labels = nil
	frozen := Kept{"a": AllKept}
	tests := map[string]struct {
		kept      Kept
		connected bool
		node      *corev1.Node
		pod       func(*corev1.Pod)
		slice     discoveryv1.EndpointConditions
		want      string
	}{
		"connected":                          {frozen, true, unseen("n"), marked, isNotReady, "ready frozen"},
		"not connected":                      {frozen, false, unseen("n"), marked, isNotReady, "draining frozen"},
		"slice before the pod":               {frozen, true, unseen("n"), well, isNotReady, "ready frozen"},
		"terminating, connected":             {frozen, true, unseen("n"), both(marked, terminating), isEnding, "ready frozen"},
		"terminating, not connected":         {frozen, false, unseen("n"), both(marked, terminating), isEnding, "draining frozen"},
		"the kubelet had it unready":         {frozen, true, unseen("n"), failed, isNotReady, "unready"},
		"a gate was closed":                  {frozen, true, unseen("n"), gates(corev1.ConditionFalse), isNotReady, "unready"},
		"its gates were open":                {frozen, true, unseen("n"), gates(corev1.ConditionTrue), isNotReady, "ready frozen"},
		"node NotReady by its kubelet":       {frozen, true, condition(seen("n"), corev1.ConditionFalse), failed, isNotReady, "unready"},
		"node seen again, pod still marked":  {frozen, true, seen("n"), marked, isNotReady, "ready frozen"},
		"node seen again, pod is told to go": {frozen, true, seen("n"), both(marked, terminating), isEnding, "unready"},
		"node seen again, all is well":       {frozen, true, seen("n"), well, isReady, "ready"},
		"a node that goes":                   {frozen, true, goes, marked, isNotReady, "unready"},
		"another zone":                       {frozen, true, elsewhere, marked, isNotReady, "unready"},
		"no zone, frozen":                    {Kept{"": AllKept}, true, noZone, marked, isNotReady, "ready frozen"},
		"no zone, not frozen":                {frozen, true, noZone, marked, isNotReady, "unready"},
		"one dead node":                      {Kept{}, false, unseen("n"), marked, isNotReady, "unready"},
		"one dead node, terminating":         {Kept{}, false, unseen("n"), both(marked, terminating), isEnding, "unready"},
		"off":                                {nil, true, unseen("n"), marked, isNotReady, "unready"},
		"ready is ready":                     {frozen, false, unseen("n"), well, isReady, "ready"},
		"drained by an administrator": {
			frozen, true, unseen("n"), both(marked, annotated(mesh.AnnotationDrain, "x")), isNotReady, "draining frozen",
		},
		"its tenth has thawed": {Kept{"a": tenth("u")}, true, unseen("n"), marked, isNotReady, "unready"},
		"its tenth is kept":    {Kept{"a": tenth("u") + 1}, true, unseen("n"), marked, isNotReady, "ready frozen"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			// The result does not depend on the order in which changes arrive.
			orders := [][]string{{"node", "pod", "slice", "verdict"}, {"slice", "pod", "node", "verdict"}, {"verdict", "slice", "node", "pod"}, {"pod", "slice", "verdict", "node"}}
			for _, order := range orders {
				synctest.Test(t, func(t *testing.T) {
					f := newFrozenTest(t, Kept{})
					f.connected = tc.connected
					for _, what := range order {
						switch what {
						case "node":
							f.change(t, tc.node)
						case "pod":
							f.change(t, pod("web-1", "u", "10.0.0.1", onNode("n"), tc.pod))
						case "slice":
							f.change(t, f.slice(tc.slice))
						case "verdict":
							f.Freeze(tc.kept)
							f.derive()
						}
					}
					f.settle()
					if got := f.state(); got != tc.want {
						t.Errorf("in order %v: %s, want %s", order, got, tc.want)
					}
				})
			}
		})
	}
}

func both(first, second func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) { first(p); second(p) }
}

// An endpoint on a silent node stays unchanged until the verdict, but not for longer than settleTime.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFrozenTest(t, Kept{})
		f.connected = true
		step := func(want string) {
			t.Helper()
			if got := f.state(); got != want {
				t.Fatalf("%s, want %s", got, want)
			}
		}
		f.change(t, unseen("n"), pod("web-1", "u", "10.0.0.1", onNode("n"), marked), f.slice(isNotReady))
		step("ready")
		<-time.After(settleTime - time.Millisecond)
		f.recheck()
		f.derive()
		step("ready")
		f.Freeze(Kept{"a": AllKept}) // just before settleTime ends
		f.derive()
		step("ready frozen")
		f.connected = false
		f.recheck()
		f.derive()
		step("draining frozen")
		f.connected = true
		f.recheck()
		f.derive()
		step("ready frozen")
		<-time.After(settleTime)
		f.Freeze(Kept{}) // the endpoint does not wait a second time
		f.derive()
		step("unready")
		f.remove(t, f.slice(isNotReady))
		f.derive()
		if step("gone"); len(f.kept) != 0 {
			t.Errorf("%d deleted endpoints remain", len(f.kept))
		}
	})
}

// A terminating pod is not drained while its kubelet cannot know of the deletion.
func TestFrozenPodDoesNotDrain(t *testing.T) {
	f := newFrozenTest(t, Kept{"a": AllKept})
	f.change(t, unseen("n"), pod("web-1", "u", "10.0.0.1", onNode("n"), marked, terminating))
	if d := f.r.dataplane("web-1.shop").Drain; d != nil {
		t.Errorf("it drains: %v", d)
	}
	f.Freeze(Kept{})
	f.derive()
	if d := f.r.dataplane("web-1.shop").Drain; d == nil || !d.Terminating {
		t.Errorf("it does not drain after the thaw: %v", d)
	}
}

// For a pod without a sidecar, only the state of its node is known.
func TestKeptWithoutSidecar(t *testing.T) {
	for name, tc := range map[string]struct {
		node *corev1.Node
		uid  string
		want string
	}{
		"node not seen":                       {unseen("n"), "plain", "draining frozen"},
		"node seen":                           {seen("n"), "plain", "unready"},
		"no pod, as its Service's owner says": {unseen("n"), "", "unready"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFrozenTest(t, Kept{"a": AllKept})
			f.change(t, sliceOf("web-x", "web", ports1("", 8080), endpointOn("n", "10.0.0.9", "plain", tc.uid, isNotReady)), tc.node)
			if got := f.state(); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

// A zone thaws in tenths, each of which has about as many pods.
func TestTenths(t *testing.T) {
	count := map[int]int{}
	for i := range 10_000 {
		count[tenth(types.UID(fmt.Sprintf("6f2a1c3e-%04d-4b7e-9d41-0242ac12%04d", i, i)))]++
	}
	for i := range AllKept {
		if n := count[i]; n < 800 || n > 1200 {
			t.Errorf("tenth %d has %d of 10000 pods", i, n)
		}
	}
	if len(count) != AllKept {
		t.Errorf("%d tenths", len(count))
	}
}

func TestMembers(t *testing.T) {
	goes := seen("goes")
	goes.DeletionTimestamp = &metav1.Time{}
	s := newSynced(t, newRecorder(), seen("n"), unseen("u"), seen("empty"), goes,
		pod("a", "a", "10.0.0.1", onNode("n")), pod("b", "b", "10.0.0.2", onNode("u")), pod("c", "c", "10.0.0.3", onNode("goes")), pod("d", "d", "10.0.0.4", onNode("gone")),
		pod("e", "e", "10.0.0.5", onNode("n"), terminating), pod("f", "f", "", onNode("n")))
	got := s.Members()
	if diff := cmp.Diff(map[string]Node{"n": {Zone: "a"}, "u": {Zone: "a", Unknown: true}}, got); diff != "" {
		t.Errorf("Members() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]mesh.ID{"default/a.shop", "default/b.shop"}, slices.Sorted(maps.Keys(s.Proxies()))); diff != "" {
		t.Errorf("Proxies() (-want +got):\n%s", diff)
	}
}
