//go:build e2e

package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestAloneThrottled gives the pods of a node less and less CPU. No more pods restart in the mesh than without it;
// their liveness probes are not guarded.
func TestAloneThrottled(t *testing.T) {
	const pods, node = 4, "node2"
	fleets := map[side]*fleet{}
	for _, s := range []side{plain, inMesh} {
		n := newNamespace(t, labelsOf[s])
		fleets[s] = n.newFleet("web", pods, "disabled", func(pod *corev1.PodTemplateSpec) {
			pod.Spec.NodeName = node
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
			pod.Spec.Containers[0].LivenessProbe = healthz(3)
		})
		fleets[s].watch()
	}
	f := fleets[inMesh]
	all := f.agent(f.pod(f.podsOf(f.app)[0]), true).cpuGroup(t).pods(t)
	for _, millicores := range []int{50, 20, 1} {
		all.limit(t, millicores)
		pass(t, 40*time.Second)
		all.unlimit(t)
		restarts := map[side]int{}
		for s, f := range fleets {
			f.waitReady("the processors are back")
			restarts[s], _ = f.restarts()
		}
		t.Logf("%d m for 40 s: restarts %v", millicores, restarts)
		if restarts[inMesh] > restarts[plain] {
			t.Errorf("%d m for 40 s: %d restarts in the mesh, and %d without it", millicores, restarts[inMesh], restarts[plain])
		}
	}
}
