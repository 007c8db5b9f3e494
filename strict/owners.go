package strict

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// owner is the owner of an address.
type owner struct {
	mesh, dataplane, workload string
	// machine means that programs without a sidecar share the address, and sharing are the proxies with it, if there
	// are several.
	machine bool
	sharing []mesh.ID
	Pod
}

func (o owner) write(s *adminv1.StrictSource) {
	s.Mesh, s.Dataplane, s.Workload, s.Pod, s.Node = o.mesh, o.dataplane, o.workload, o.Name, o.Node
	s.Machine, s.Dataplanes = o.machine, o.sharing[:min(len(o.sharing), maxNames)]
}

// ownersOf finds the owners of the sending addresses.
func (a *Answers) ownersOf(ctx context.Context, meshes []ports) map[netip.Addr]owner {
	last := map[netip.Addr]time.Time{}
	for _, all := range meshes {
		for _, p := range all {
			for from, t := range p.Sources {
				if t.Last.After(last[from]) {
					last[from] = t.Last
				}
			}
		}
	}
	owners := ownersIn(a.View(), last)
	if a.PodsAt == nil {
		return owners
	}
	maps.DeleteFunc(last, func(from netip.Addr, _ time.Time) bool { _, ok := owners[from]; return ok })
	for from, pod := range a.PodsAt(ctx, last) {
		owners[from] = owner{Pod: pod}
	}
	return owners
}

// ownersIn returns the owners of addresses in the view. Only a pod has its address to itself: a machine runs programs
// without a sidecar, and perhaps other proxies.
func ownersIn[T any](v *meshview.View, asked map[netip.Addr]T) map[netip.Addr]owner {
	owners := map[netip.Addr]owner{}
	for from := range asked {
		if from.Unmap().IsLoopback() {
			owners[from] = owner{machine: true}
		}
	}
	at := map[netip.Addr][]*meshview.Proxy{}
	for _, m := range v.Meshes {
		for _, p := range m.Proxies.All() {
			address, err := netip.ParseAddr(p.Dataplane.Spec.Networking.Address)
			if _, wanted := asked[address]; err == nil && wanted && !address.Unmap().IsLoopback() {
				at[address] = append(at[address], p)
			}
		}
	}
	for address, proxies := range at {
		if len(proxies) == 1 {
			d := proxies[0].Dataplane
			owners[address] = owner{mesh: d.Mesh, dataplane: d.Name, workload: mesh.WorkloadText(d.SPIFFEPath()),
				machine: !d.IsPod()}
			continue
		}
		shared := owner{machine: true}
		for _, p := range proxies {
			shared.sharing = append(shared.sharing, p.ID())
		}
		slices.Sort(shared.sharing)
		owners[address] = shared
	}
	return owners
}
