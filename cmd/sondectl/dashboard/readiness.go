package dashboard

import (
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// Reasons for the readiness of a pod.
const (
	podReady      = "Kubernetes says that the pod is Ready"
	podNotReady   = "Kubernetes says that the pod is not Ready"
	podStopped    = "its agent has drained and exited"
	podNoEndpoint = "its readiness is unknown: no listed Service has an endpoint at its sidecar"
)

// endpointsOfPods returns the endpoints that Service objects have, by Dataplane. They have the readiness of their pods,
// which the inbounds of the Dataplanes lack.
func endpointsOfPods(services []*adminv1.Service) map[mesh.ID][]*adminv1.Endpoint {
	all := map[mesh.ID][]*adminv1.Endpoint{}
	for _, s := range services {
		for _, e := range s.GetEndpoints() {
			if e.GetDeclared() && e.GetDataplane() != "" {
				id := mesh.MakeID(s.GetMesh(), e.GetDataplane())
				all[id] = append(all[id], e)
			}
		}
	}
	return all
}

// ofPod returns whether a pod is Ready, by the worst of its endpoints. They are ready whatever the pod is if their
// Service publishes addresses that are not, so that the state of the pod counts, too.
func ofPod(d *status.Dataplane, endpoints []*adminv1.Endpoint, pod, why string) Finding {
	f := Finding{Instance: pod, State: Unreported, Do: why, Reason: podNoEndpoint}
	if d.GetStopped() {
		f.Reason = podStopped
		return f
	}
	for i, e := range endpoints {
		state, reason := readinessOf(e)
		if i == 0 || slices.Index(states, state) < slices.Index(states, f.State) {
			f.State, f.Reason = state, reason
		}
	}
	switch state := d.GetPodState(); {
	case state == nil || f.State != Passing && len(endpoints) > 0:
	case state.GetReady():
		f.State, f.Reason = Passing, podReady
	default:
		f.State, f.Reason = Failing, podNotReady
	}
	return f
}

// readinessOf returns what an endpoint says of its pod. One that drains is Ready, and should get no new traffic.
func readinessOf(e *adminv1.Endpoint) (State, string) {
	reason := e.GetReason()
	switch h := e.GetHealth(); {
	case isFrozen(e), reason == mesh.RestartingReason:
		return Unreported, reason
	case h == adminv1.Endpoint_STOPPED:
		return Unreported, podStopped
	case h == adminv1.Endpoint_READY, h == adminv1.Endpoint_DRAINING:
		return Passing, podReady
	case h == adminv1.Endpoint_NOT_READY:
		return Failing, podNotReady
	}
	return Unreported, "the health of its endpoint is from a later version of the control plane"
}

// isFrozen reports whether an endpoint keeps its state although Kubernetes has another one.
func isFrozen(e *adminv1.Endpoint) bool { return strings.HasPrefix(e.GetReason(), mesh.FrozenReason) }
