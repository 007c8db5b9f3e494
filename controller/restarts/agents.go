package restarts

import (
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Agents knows the agents of all proxies, at any replica. *agents.Server implements it.
type Agents interface {
	// PodLiveness returns the agents' reports about guarded liveness probes.
	PodLiveness() map[mesh.ID]agentv1.ReportedLiveness
	// Lacking returns the proxies whose agents lack a feature.
	Lacking(feature string) []mesh.ID
	// WakeRestarts makes the proxy's session send the current Restarts.Of, if the session is here. It returns at once.
	WakeRestarts(proxy mesh.ID)
	// States returns the states of all agents, Agents the agents that have a session.
	States() map[mesh.ID]*adminv1.AgentState
	Agents() map[mesh.ID]*adminv1.Agent
}

// podOf returns the pod of a proxy; ok is false for a Dataplane without a pod.
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

// liveness returns the agents' reports, by pod.
func (r *Restarts) liveness() map[watch.Key]agentv1.ReportedLiveness {
	all := map[watch.Key]agentv1.ReportedLiveness{}
	for id, reported := range r.o.Agents().PodLiveness() {
		if pod, ok := podOf(id); ok {
			all[pod] = reported
		}
	}
	return all
}

// withoutGrants returns the pods whose agents do not support grants.
func (r *Restarts) withoutGrants() map[watch.Key]bool {
	all := map[watch.Key]bool{}
	for _, id := range r.o.Agents().Lacking(agentv1.FeatureRestartGrants) {
		if pod, ok := podOf(id); ok {
			all[pod] = true
		}
	}
	return all
}

// agent returns the state of a pod's agent, and the agent if it has a session.
func (r *Restarts) agent(pod watch.Key) (*adminv1.AgentState, *adminv1.Agent) {
	id := r.o.Proxy(pod)
	return r.o.Agents().States()[id], r.o.Agents().Agents()[id]
}

// tell makes the agent's session send the current ofPod.
func (r *Restarts) tell(pod watch.Key) {
	if id := r.o.Proxy(pod); id != "" {
		r.o.Agents().WakeRestarts(id)
	}
}
