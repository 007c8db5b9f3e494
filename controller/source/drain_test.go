package source

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

func TestReasonsToDrain(t *testing.T) {
	t.Parallel()
	drained := func(reason string) *corev1.Node {
		n := node("a")
		n.Annotations = map[string]string{mesh.AnnotationDrain: reason}
		return n
	}
	cordoned := node("a", corev1.TaintNodeUnschedulable)
	cordoned.Spec.Unschedulable = true
	deleted := node("a")
	deleted.DeletionTimestamp = &metav1.Time{}
	tests := map[string]struct {
		node *corev1.Node
		pod  []func(*corev1.Pod)
		want *mesh.Drain
	}{
		"none":               {node("a"), nil, nil},
		"cordoned":           {cordoned, nil, nil},
		"another taint":      {node("a", "ToBeDeletedByClusterAutoscaler2", "karpenter.sh"), nil, nil},
		"cluster autoscaler": {node("a", "other", "ToBeDeletedByClusterAutoscaler"), nil, &mesh.Drain{Node: "node a: taint ToBeDeletedByClusterAutoscaler"}},
		"karpenter":          {node("a", "karpenter.sh/disrupted"), nil, &mesh.Drain{Node: "node a: taint karpenter.sh/disrupted"}},
		"being drained":      {conditioned(corev1.NodeDrainInProgress, "True", ""), nil, &mesh.Drain{Node: "node a: condition DrainInProgress"}},
		"has been drained": {conditioned(corev1.NodeDrained, "True", "DrainCompleted"), nil,
			&mesh.Drain{Node: `node a: condition Drained, reason "DrainCompleted"`}},
		"is shut down": {conditioned(corev1.NodeGracefulNodeShutdownInProgress, "True", "NodeShutdown"), nil,
			&mesh.Drain{Node: `node a: condition GracefulNodeShutdownInProgress, reason "NodeShutdown"`}},
		"drain over":              {conditioned(corev1.NodeDrainInProgress, "False", "AdminRequested"), nil, nil},
		"drain not known":         {conditioned(corev1.NodeDrainInProgress, "Unknown", "AdminRequested"), nil, nil},
		"maintenance planned":     {conditioned(corev1.NodeMaintenancePlanned, "True", "MaintenanceWindow"), nil, nil},
		"maintenance in progress": {conditioned(corev1.NodeMaintenanceInProgress, "True", "MaintenanceWindow"), nil, nil},
		"a condition of the user's own": {conditioned("shop.example/Reclaimed", "True", "Spot"), nil,
			&mesh.Drain{Node: `node a: condition shop.example/Reclaimed, reason "Spot"`}},
		"a hostile reason": {conditioned(corev1.NodeDrained, "True", "\x1b[2J\n"+strings.Repeat("x", 99)), nil,
			&mesh.Drain{Node: `node a: condition Drained, reason "\x1b[2J\n` + strings.Repeat("x", 56) + `…"`}},
		"of the user's own": {node("a", "shop.example/going"), nil, &mesh.Drain{Node: "node a: taint shop.example/going"}},
		"node deleted":      {deleted, nil, &mesh.Drain{Node: "node a: it is being deleted"}},
		"another node":      {node("b", "karpenter.sh/disrupted"), nil, nil},
		"node gone before":  {node("b"), []func(*corev1.Pod){onNode("c")}, &mesh.Drain{Node: "node c no longer exists"}},
		"node drained":      {drained("kernel update"), nil, &mesh.Drain{Administrator: "node a is drained: kernel update"}},
		"without a reason":  {drained(""), nil, &mesh.Drain{Administrator: "node a is drained"}},
		"a long reason": {drained(strings.Repeat("x", 255) + "\u00e9"), nil,
			&mesh.Drain{Administrator: "node a is drained: " + strings.Repeat("x", 255)}},
		"pod drained": {node("a"), []func(*corev1.Pod){annotated(mesh.AnnotationDrain, "a test")}, &mesh.Drain{Administrator: "pod is drained: a test"}},
		"pod deleted": {node("a"), []func(*corev1.Pod){terminating}, &mesh.Drain{Terminating: true}},
		"all": {
			node("a", "karpenter.sh/disrupted"), []func(*corev1.Pod){terminating, annotated(mesh.AnnotationDrain, "x")},
			&mesh.Drain{Terminating: true, Node: "node a: taint karpenter.sh/disrupted", Administrator: "pod is drained: x"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder()
			newSynced(t, r, node("a"), test.node, pod("web", "u", "10.0.0.1", append([]func(*corev1.Pod){onNode("a")}, test.pod...)...))
			if diff := cmp.Diff(test.want, r.dataplane("web.shop").Drain); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeDrainsItsPods(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	s := newSynced(t, r, node("a"), node("b"), pod("one", "u-1", "10.0.0.1", onNode("a")), pod("two", "u-2", "10.0.0.2", onNode("b")),
		serviceOf("web", "10.96.0.1", port("http", 80)),
		sliceOf("web-1", "web", []discoveryv1.EndpointPort{at("http", 8080)}, endpoint("10.0.0.1", "one", "u-1", isReady), endpoint("10.0.0.2", "two", "u-2", isReady)))
	states := func() string {
		var all []string
		for _, e := range r.service("web_shop_svc_80").Spec.Endpoints {
			state := "no traffic"
			switch {
			case e.Health.IsReady():
				state = "ready"
			case e.Health.IsServing():
				state = "serving"
			}
			all = append(all, e.Address+" "+state)
		}
		return strings.Join(all, ", ")
	}
	check := func(when, want string) {
		t.Helper()
		if got := states(); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	check("at first", "10.0.0.1 ready, 10.0.0.2 ready")
	s.change(t, node("a", "karpenter.sh/disrupted"))
	check("node a goes", "10.0.0.1 serving, 10.0.0.2 ready")
	s.IgnoreNodes(true)
	s.derive()
	check("nodes do not count", "10.0.0.1 ready, 10.0.0.2 ready")
	s.IgnoreNodes(false)
	s.derive()
	check("nodes count again", "10.0.0.1 serving, 10.0.0.2 ready")
	s.change(t, node("a"))
	check("node a stays", "10.0.0.1 ready, 10.0.0.2 ready")
	s.remove(t, node("a"))
	s.derive()
	check("node a is gone", "10.0.0.1 serving, 10.0.0.2 ready")
	if got := r.dataplane("one.shop").Drain; got == nil || got.Node != "node a no longer exists" {
		t.Errorf("the pod of a deleted node: %+v", got)
	}
	s.change(t, node("a"))
	check("node a is back", "10.0.0.1 ready, 10.0.0.2 ready")
	s.change(t, pod("one", "u-1", "10.0.0.1", onNode("a"), annotated(mesh.AnnotationDrain, "")))
	check("pod drained", "10.0.0.1 serving, 10.0.0.2 ready")
}

// held returns a cluster with three pods on two nodes. Two of the pods belong to a Service with a port for load
// balancers.
func held(t *testing.T, minServing int) (*Source, *recorder, *[]string) {
	t.Helper()
	r := newRecorder()
	s := newSource(t, r)
	var told []string
	s.o.Drains.MinServing = minServing
	s.o.Held = func(service watch.Key, uid types.UID, pods []string) {
		told = append(told, string(uid)+" "+service.String()+" "+strings.Join(pods, ","))
	}
	web := serviceOf("web", "10.96.0.1", port("http", 80))
	web.UID = "s-1"
	for _, o := range []metav1.Object{
		node("a"), node("b"), web,
		pod("one", "u-1", "10.0.0.1", onNode("a"), forLoadBalancers), pod("two", "u-2", "10.0.0.2", onNode("b"), forLoadBalancers),
		pod("other", "u-3", "10.0.0.3", onNode("b")), slicesOf(isReady, isReady),
	} {
		s.add(t, o)
	}
	s.sync()
	return s, r, &told
}

func slicesOf(one, two discoveryv1.EndpointConditions) *discoveryv1.EndpointSlice {
	return sliceOf("web-1", "web", []discoveryv1.EndpointPort{at("http", 8080)}, endpoint("10.0.0.1", "one", "u-1", one),
		endpoint("10.0.0.2", "two", "u-2", two), endpoint("10.0.0.3", "other", "u-3", isReady))
}

func TestDrainIsHeld(t *testing.T) {
	t.Parallel()
	const going = "karpenter.sh/disrupted"
	tests := map[string]struct {
		minServing int
		change     []metav1.Object
		remove     metav1.Object
		want       []string // pods that get no new traffic
		told       []string
	}{
		"nothing goes":       {1, nil, nil, nil, nil},
		"one goes":           {1, []metav1.Object{node("a", going)}, nil, []string{"one"}, nil},
		"all go":             {1, []metav1.Object{node("a", going), node("b", going)}, nil, []string{"other"}, []string{"s-1 shop/web one,two"}},
		"one too many goes":  {2, []metav1.Object{node("a", going)}, nil, nil, []string{"s-1 shop/web one"}},
		"no limit":           {0, []metav1.Object{node("a", going), node("b", going)}, nil, []string{"one", "other", "two"}, nil},
		"the other is unfit": {1, []metav1.Object{node("a", going), slicesOf(isReady, isNotReady)}, nil, nil, []string{"s-1 shop/web one"}},
		"the other restarts": {
			1, []metav1.Object{node("a", going), pod("two", "u-2", "10.0.0.2", onNode("b"), forLoadBalancers, restarting("True", failed))}, nil,
			nil, []string{"s-1 shop/web one"},
		},
		"the last one is unfit itself": {
			1, []metav1.Object{node("a", going), node("b", going), slicesOf(isNotReady, isReady)}, nil, []string{"one", "other"}, []string{"s-1 shop/web two"},
		},
		"the other is deleted": {
			1, []metav1.Object{node("a", going), pod("two", "u-2", "10.0.0.2", onNode("b"), forLoadBalancers, terminating)}, nil,
			[]string{"two"}, []string{"s-1 shop/web one"},
		},
		"the other's node is gone":  {1, []metav1.Object{node("a", going)}, node("b"), []string{"other", "two"}, []string{"s-1 shop/web one"}},
		"deleted ones do not serve": {1, []metav1.Object{pod("one", "u-1", "10.0.0.1", forLoadBalancers, terminating), pod("two", "u-2", "10.0.0.2", forLoadBalancers, terminating)}, nil, []string{"one", "two"}, nil},
		"an administrator": {
			1, []metav1.Object{pod("one", "u-1", "10.0.0.1", forLoadBalancers, annotated(mesh.AnnotationDrain, "")), node("b", going)}, nil,
			[]string{"other"}, []string{"s-1 shop/web one,two"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, r, told := held(t, test.minServing)
			if test.remove != nil {
				s.remove(t, test.remove)
			}
			s.change(t, test.change...)
			drained := func() (names []string) {
				for _, name := range []string{"one", "other", "two"} {
					if r.dataplane(name + ".shop").Drain.Applies() {
						names = append(names, name)
					}
				}
				return names
			}
			if got := drained(); !slices.Equal(got, test.want) {
				t.Errorf("%v get no new traffic, want %v", got, test.want)
			}
			if !slices.Equal(*told, test.told) {
				t.Errorf("reported %q, want %q", *told, test.told)
			}
			s.change(t, node("c"), pod("new", "u-9", "10.0.0.9", onNode("c"), forLoadBalancers),
				sliceOf("web-2", "web", []discoveryv1.EndpointPort{at("http", 8080)}, endpoint("10.0.0.9", "new", "u-9", isReady)))
			if test.minServing == 1 && len(s.held) > 0 {
				t.Errorf("with a new proxy drains are held: %v", s.held)
			}
			for key := range maps.Keys(s.drains) {
				if d := r.dataplane(key.Name + ".shop").Drain; test.minServing == 1 && !d.Applies() {
					t.Errorf("with a new proxy %s keeps serving: %+v", key.Name, d)
				}
			}
		})
	}
}

// TestEndedPodsDoNotDrain checks that evicted pods whose objects still exist are neither reported as draining, nor
// counted as serving.
func TestEndedPodsDoNotDrain(t *testing.T) {
	t.Parallel()
	s, r, told := held(t, 1)
	s.change(t, node("a", "karpenter.sh/disrupted"), pod("two", "u-2", "10.0.0.2", onNode("b"), forLoadBalancers, inPhase(corev1.PodFailed)))
	if want := []string{"s-1 shop/web one"}; !slices.Equal(*told, want) || r.dataplane("one.shop").Drain.Applies() {
		t.Errorf("reported %q, want %q: the other pod has ended", *told, want)
	}
	s.change(t, pod("one", "u-1", "10.0.0.1", onNode("a"), forLoadBalancers, inPhase(corev1.PodFailed)))
	if len(s.drains) != 0 || len(s.held) != 0 {
		t.Errorf("ended pods drain: %v, held for %v", s.drains, s.held)
	}
}

// TestHeldIsToldAgain checks that a new leader can report which pods keep serving, even if they did before.
func TestHeldIsToldAgain(t *testing.T) {
	t.Parallel()
	s, _, told := held(t, 1)
	again := func(want ...string) {
		t.Helper()
		*told = nil
		s.TellDrains()
		s.derive()
		if !slices.Equal(*told, want) {
			t.Errorf("reported %q, want %q", *told, want)
		}
	}
	again()
	s.change(t, node("a", "karpenter.sh/disrupted"), slicesOf(isReady, isNotReady))
	again("s-1 shop/web one")
	s.change(t, node("b", "karpenter.sh/disrupted"), slicesOf(isReady, isReady))
	again("s-1 shop/web one,two")
	s.change(t, node("a"), node("b"))
	again()
}
