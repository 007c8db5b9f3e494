// Package strict reports the traffic that a mesh in mode PERMISSIVE accepts but would reject in mode STRICT, who sends
// it, and which proxies do not report.
package strict

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin/lookup"
	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// Agents has the counts of agents at all replicas. *agents.Server implements it.
type Agents interface {
	// RefreshPlaintext asks the agents of these meshes for their counts, and returns the proxies that answered.
	RefreshPlaintext(ctx context.Context, meshes []string) map[mesh.ID]bool
	Plaintext(meshName string) (proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext,
		since time.Time)
	Agents() map[mesh.ID]*adminv1.Agent
	States() map[mesh.ID]*adminv1.AgentState
}

// Answers implements CheckStrict of adminv1.AdminServiceServer. All fields are required but PodsAt.
type Answers struct {
	Agents Agents
	View   lookup.View
	// Streams returns Envoy's ADS streams by proxy, and the names of the replicas that did not answer.
	Streams func(context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string)
	// Missing returns the names of the replicas that are disconnected.
	Missing func() []string
	// PodsAt returns the pods that had addresses at a time. Default: no pods.
	PodsAt func(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]Pod
}

// CheckStrict implements adminv1.AdminServiceServer.
func (a *Answers) CheckStrict(
	ctx context.Context, r *adminv1.CheckStrictRequest,
) (*adminv1.CheckStrictResponse, error) {
	v, err := a.View.Within(ctx, r.GetMesh())
	if err != nil {
		return nil, err
	}
	var meshes []*meshview.Mesh
	for _, name := range slices.Sorted(maps.Keys(v.Meshes)) {
		if r.GetMesh() == "" || r.GetMesh() == name {
			meshes = append(meshes, v.Meshes[name])
		}
	}
	streams, silent := a.Streams(ctx)
	response := &adminv1.CheckStrictResponse{Meshes: a.meshes(ctx, meshes, streams)}
	response.MissingReplicas = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Missing(), silent))))
	for _, m := range response.GetMeshes() {
		m.PortsLeftOut = uint32(max(0, len(m.GetPorts())-adminv1.MaxListed))
		m.GapsLeftOut = uint32(max(0, len(m.GetGaps())-adminv1.MaxListed))
		m.Ports, m.Gaps = m.GetPorts()[:min(len(m.GetPorts()), adminv1.MaxListed)],
			m.GetGaps()[:min(len(m.GetGaps()), adminv1.MaxListed)]
	}
	return response, nil
}

// meshes returns, for each mesh, the traffic that it would reject in mode STRICT, and the proxies without a current
// report. streams are all Envoys'. Owners of sending addresses are looked up once for all meshes.
func (a *Answers) meshes(
	ctx context.Context, meshes []*meshview.Mesh, streams map[mesh.ID][]*adminv1.Stream,
) []*adminv1.StrictMesh {
	fresh := a.Agents.RefreshPlaintext(ctx, permissive(meshes))
	told := tellers{agents: a.Agents.Agents(), states: a.Agents.States(), streams: streams, fresh: fresh}
	found, all := make([]*adminv1.StrictMesh, len(meshes)), make([]ports, len(meshes))
	for i, m := range meshes {
		proxies, past, since := a.Agents.Plaintext(m.Spec.Name)
		found[i] = &adminv1.StrictMesh{Mesh: m.Spec.Name, Mode: string(m.Spec.Mode()), Since: timestamppb.New(since),
			Proxies: uint32(m.Proxies.Len())}
		if m.Spec.Mode() == mesh.ModePermissive {
			all[i], found[i].Gaps = portsOf(proxies, past), told.gaps(m, proxies)
			found[i].Telling = uint32(m.Proxies.Len() - len(found[i].GetGaps()))
		}
	}
	owners := a.ownersOf(ctx, all)
	for i, m := range meshes {
		for _, k := range all[i].sorted() {
			found[i].Ports = append(found[i].Ports, messageOf(m, k, all[i][k], owners))
		}
	}
	return found
}

// permissive returns the names of the meshes whose proxies count plaintext.
func permissive(meshes []*meshview.Mesh) []string {
	var names []string
	for _, m := range meshes {
		if m.Spec.Mode() == mesh.ModePermissive {
			names = append(names, m.Spec.Name)
		}
	}
	return names
}
