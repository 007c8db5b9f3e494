package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// WholeRestart is how far the kubelet is with a restart of all containers of a pod at once (KEP-5532).
type WholeRestart uint8

const (
	// NotRestarting is the state of pods without such a rule, and of those that are ready.
	NotRestarting WholeRestart = iota
	// Stopping means that the containers are killed and removed, without preStop hooks: nothing of the pod serves.
	Stopping
	// Starting means that the pod has such a rule and is not ready, as it is after Stopping.
	Starting
)

// wholeRestartOf returns the state by the kubelet's condition. It precedes readiness, so that a slice may still say that the pod is ready.
func wholeRestartOf(p *corev1.Pod, healthy bool) WholeRestart {
	switch {
	case podspec.RestartingAll(p) != nil:
		return Stopping
	case !healthy && podspec.Condition(p, corev1.AllContainersRestarting) != nil:
		return Starting
	}
	return NotRestarting
}

// away reports whether an endpoint is taken away before its slice says so. A nil Pod has no such endpoint.
func (p *Pod) away(e *sliceEndpoint) bool {
	return p != nil && (p.WholeRestart == Stopping || p.WholeRestart == Starting && !e.published)
}

// takeAway has an endpoint get no traffic.
func (p *Pod) takeAway(e *mesh.ServiceEndpoint) {
	e.Health, e.Frozen, e.Restarting = &mesh.EndpointHealth{Ready: new(bool), Serving: new(bool)}, false, p.WholeRestart == Stopping
}
