// Package strict reports what a mesh in mode PERMISSIVE accepts that it would refuse in mode STRICT, who has sent it, and which proxies do not report.
package strict

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// Agents have what agents have counted, at all replicas. *agents.Server implements it.
type Agents interface {
	// RefreshPlaintext asks the agents of these meshes for their counts, and returns the proxies that answered.
	RefreshPlaintext(ctx context.Context, meshes []string) map[mesh.ID]bool
	Plaintext(meshName string) (proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext, since time.Time)
	Agents() map[mesh.ID]*adminv1.Agent
	States() map[mesh.ID]*adminv1.AgentState
}

// Answers has the answers for sondectl.
type Answers struct {
	// Agents and View are required.
	Agents Agents
	View   func() *meshview.View
	// PodsAt returns which pods have had addresses at some time. Default: there are no pods.
	PodsAt func(ctx context.Context, last map[netip.Addr]time.Time) map[netip.Addr]Pod
}

// Meshes returns for each mesh what it would refuse in mode STRICT, and which proxies have no current report. streams are those of all Envoys. Whose an address is
// that has sent is found out once for all meshes.
func (a *Answers) Meshes(ctx context.Context, meshes []*meshview.Mesh, streams map[mesh.ID][]*adminv1.Stream) []*adminv1.StrictMesh {
	fresh := a.Agents.RefreshPlaintext(ctx, permissive(meshes))
	told := tellers{agents: a.Agents.Agents(), states: a.Agents.States(), streams: streams, fresh: fresh}
	found, all := make([]*adminv1.StrictMesh, len(meshes)), make([]ports, len(meshes))
	for i, m := range meshes {
		proxies, past, since := a.Agents.Plaintext(m.Spec.Name)
		found[i] = &adminv1.StrictMesh{Mesh: m.Spec.Name, Mode: string(m.Spec.Mode()), Since: timestamppb.New(since), Proxies: uint32(m.Proxies.Len())}
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

// permissive returns the names of the meshes whose proxies count.
func permissive(meshes []*meshview.Mesh) []string {
	var names []string
	for _, m := range meshes {
		if m.Spec.Mode() == mesh.ModePermissive {
			names = append(names, m.Spec.Name)
		}
	}
	return names
}
