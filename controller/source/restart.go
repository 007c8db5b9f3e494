package source

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// WholeRestart is the state of the kubelet's restart of all containers of a pod at once (KEP-5532).
type WholeRestart uint8

const (
	// NotRestarting is the state of ready pods, and of pods without such a rule.
	NotRestarting WholeRestart = iota
	// Stopping means that the kubelet kills and removes the containers, without preStop hooks: the pod does not serve.
	Stopping
	// Starting means that a pod with such a rule is not ready, as after Stopping.
	Starting
)

// wholeRestartOf returns the state from the kubelet's condition, which changes before readiness: a slice may still have
// the pod as ready.
func wholeRestartOf(p *corev1.Pod, healthy bool) WholeRestart {
	switch {
	case podspec.RestartingAll(p) != nil:
		return Stopping
	case !healthy && podspec.Condition(p, corev1.AllContainersRestarting) != nil:
		return Starting
	}
	return NotRestarting
}

// away reports whether an endpoint must be taken away before its slice changes. It is false for a nil Pod.
func (p *Pod) away(e *sliceEndpoint) bool {
	return p != nil && (p.WholeRestart == Stopping || p.WholeRestart == Starting && !e.published)
}

// takeAway makes an endpoint get no traffic.
func (p *Pod) takeAway(e *mesh.ServiceEndpoint) {
	e.Health = &mesh.EndpointHealth{Ready: new(bool), Serving: new(bool)}
	e.Frozen, e.Restarting = false, p.WholeRestart == Stopping
}
