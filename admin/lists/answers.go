// Package lists answers the calls of the admin API that list objects with their state: meshes, dataplanes, proxies,
// services and MeshServices.
package lists

import (
	"context"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/admin/lookup"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Answers implements the list calls of adminv1.AdminServiceServer. All exported fields but PodState and ProbesOf are
// required. Only the Answers of Once keep results.
type Answers struct {
	View lookup.View
	// Problems returns the problems of objects in the store.
	Problems func() []*adminv1.Problem
	// Streams returns Envoy's ADS streams by proxy, also of proxies without a Dataplane, and the names of the replicas
	// that did not answer.
	Streams func(context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string)
	// Missing returns the names of disconnected replicas.
	Missing func() []string
	Agents  Agents
	Since   Since
	// CAExpires returns when the CA of a mesh expires, zero before it exists.
	CAExpires func(meshName string) time.Time
	// PodState returns what Kubernetes says of a pod by its Dataplane, nil for an unknown one. It is nil without
	// Kubernetes.
	PodState func(dataplane string) *adminv1.PodState
	// ProbesOf returns the texts about the probes of a pod, as PodState.
	ProbesOf func(dataplane string) *adminv1.ProbeSet

	encoded *encoded      // see Once
	waited  time.Duration // see Waited
}

// Agents has the reports of agents and Envoys at all replicas. *agents.Server implements it.
type Agents interface {
	// Agents returns the agents with a session by proxy, also of proxies without a Dataplane.
	Agents() map[mesh.ID]*adminv1.Agent
	// States returns the states of all agents by proxy, also of agents that wait for a Dataplane.
	States() map[mesh.ID]*adminv1.AgentState
	// Unresponsive pings the agents of a mesh ("" for all). It returns the proxies whose agents did not answer in time,
	// and the names of the replicas that did not answer.
	Unresponsive(ctx context.Context, meshName string) (unresponsive map[mesh.ID]bool, missing []string)
	// Verdicts returns the verdicts of a proxy's probes, nil if its agent has not reported them in its current session.
	Verdicts(proxy mesh.ID) *adminv1.Verdicts
	// NotServing returns why applications of a proxy cannot take traffic, by the address of the inbound.
	NotServing(proxy mesh.ID) map[netip.AddrPort]string
	// RefusedListeners returns why the Envoy of a proxy rejects listeners, by their address.
	RefusedListeners(proxy mesh.ID) map[netip.AddrPort]string
}

// Since returns since when a state has lasted, zero if that is unknown. *since.Times implements it.
type Since interface {
	// Inbound and Outbound return this for the health of a proxy's inbound or outbound at an address.
	Inbound(proxy mesh.ID, at netip.AddrPort) time.Time
	Outbound(proxy mesh.ID, at netip.AddrPort) time.Time
	// Without returns since when no endpoint of a service has got traffic.
	Without(service mesh.ID) time.Time
}
