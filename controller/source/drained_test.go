package source

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// A drain is reported once for each reason, and not for a pod that keeps serving or is deleted.
func TestDrainedIsTold(t *testing.T) {
	t.Parallel()
	s, _, _ := held(t, 1)
	var told []string
	s.o.Drained = func(pod watch.Key, uid types.UID, why string) {
		told = append(told, string(uid)+" "+pod.String()+": "+why)
	}
	expect := func(when string, want ...string) {
		t.Helper()
		slices.Sort(told)
		if !slices.Equal(told, want) {
			t.Errorf("%s: reported %q, want %q", when, told, want)
		}
		told = nil
	}
	const going = "karpenter.sh/disrupted"
	s.change(t, node("a", going))
	expect("node a goes", "u-1 shop/one: node a: taint karpenter.sh/disrupted")
	s.change(t, node("a", going), pod("one", "u-1", "10.0.0.1", onNode("a"), forLoadBalancers, inPhase("Running")))
	expect("nothing else is wrong")
	s.change(t, node("b", going))
	expect("the two for load balancers serve on", "u-3 shop/other: node b: taint karpenter.sh/disrupted")
	s.change(t, node("b"))
	expect("node b stays, so that the first may go", "u-1 shop/one: node a: taint karpenter.sh/disrupted")
	s.TellDrains()
	s.derive()
	expect("there is a new listener", "u-1 shop/one: node a: taint karpenter.sh/disrupted")
	s.change(t, pod("one", "u-9", "10.0.0.1", onNode("a"), forLoadBalancers, inPhase("Running")))
	expect("another pod has its name and node", "u-9 shop/one: node a: taint karpenter.sh/disrupted")
	s.change(t, pod("two", "u-2", "10.0.0.2", onNode("b"), annotated(mesh.AnnotationDrain, "a test"), terminating))
	expect("a pod that is deleted")
	s.remove(t, pod("one", "u-9", "10.0.0.1"))
	s.derive()
	if len(s.drained) != 0 {
		t.Errorf("%v remains", s.drained)
	}
}
