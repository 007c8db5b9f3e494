package restarts

import (
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Agents are the agents of all proxies, whichever replica they speak with. *agents.Server implements it.
type Agents interface {
	// PodLiveness returns what agents report of guarded liveness probes.
	PodLiveness() map[mesh.ID]agentv1.ReportedLiveness
	// Lacking returns the proxies whose agents lack a feature.
	Lacking(feature string) []mesh.ID
	// WakeRestarts makes the session of a proxy, if it is here, send what Restarts.Of returns. It returns at once.
	WakeRestarts(proxy mesh.ID)
	// States returns the states of all agents, Agents those that have a session.
	States() map[mesh.ID]*adminv1.AgentState
	Agents() map[mesh.ID]*adminv1.Agent
}

// podOf returns the pod of a proxy; ok is false for a Dataplane that has none.
func podOf(proxy mesh.ID) (pod watch.Key, ok bool) {
	_, dataplane := mesh.SplitID(proxy)
	pod.Namespace, pod.Name, ok = mesh.ObjectOf(dataplane)
	return pod, ok
}

// Of implements session.Restarts.
func (r *Restarts) Of(proxy mesh.ID) *agentv1.Restarts {
	pod, ok := podOf(proxy)
	if !ok {
		return nil
	}
	return r.ofPod(pod)
}

// Held implements session.Restarts.
func (r *Restarts) Held(mesh.ID) { r.wakeLead() }

// liveness returns what agents report, by pod.
func (r *Restarts) liveness() map[watch.Key]agentv1.ReportedLiveness {
	all := map[watch.Key]agentv1.ReportedLiveness{}
	for id, reported := range r.o.Agents().PodLiveness() {
		if pod, ok := podOf(id); ok {
			all[pod] = reported
		}
	}
	return all
}

// withoutGrants returns the pods whose agents are too old for grants.
func (r *Restarts) withoutGrants() map[watch.Key]bool {
	all := map[watch.Key]bool{}
	for _, id := range r.o.Agents().Lacking(agentv1.FeatureRestartGrants) {
		if pod, ok := podOf(id); ok {
			all[pod] = true
		}
	}
	return all
}

// agent returns the state of the agent of a pod, and the agent if it has a session.
func (r *Restarts) agent(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
	id := r.o.Proxy(pod)
	return r.o.Agents().States()[id], r.o.Agents().Agents()[id]
}

// tell makes the agent of a pod be sent what ofPod returns.
func (r *Restarts) tell(pod watch.Key) {
	if id := r.o.Proxy(pod); id != "" {
		r.o.Agents().WakeRestarts(id)
	}
}
