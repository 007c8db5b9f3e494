package meshview

import (
	"cmp"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// UnknownService is a service that only outbounds name.
type UnknownService struct {
	*Service
	Clients Clients
	in      *Mesh
}

// NoEndpoints returns why the service has no endpoint.
func (s UnknownService) NoEndpoints() NoEndpoints { return s.in.NoEndpoints(s.Service, s.Clients.Ref) }

// Clients are the Dataplanes with an outbound to a service.
type Clients struct {
	// Names of the Dataplanes, sorted.
	Names []string
	// Ref is a BackendRef by which an outbound names the service; nil if all use tags.
	Ref *mesh.BackendRef
}

func isUnknown(s *Service) bool { return s != nil && s.Unknown }

// UnknownServices returns all services that only outbounds name, sorted by mesh and name.
func (v *View) UnknownServices() []UnknownService {
	if v == nil {
		return nil
	}
	var ids []mesh.ID
	for _, m := range v.Meshes {
		for _, s := range m.Services.All() {
			if s.Unknown {
				ids = append(ids, s.ID())
			}
		}
	}
	return v.UnknownOf(ids)
}

// UnknownOf returns the given services that only outbounds name, sorted by mesh and name. If there are any, it scans
// all outbounds of the meshes.
func (v *View) UnknownOf(services []mesh.ID) []UnknownService {
	services = slices.DeleteFunc(slices.Clone(services), func(id mesh.ID) bool {
		_, s := v.Service(id)
		return !isUnknown(s)
	})
	clients := v.ClientsOf(services)
	unknown := make([]UnknownService, 0, len(services))
	for _, id := range services {
		m, s := v.Service(id)
		unknown = append(unknown, UnknownService{s, clients[id], m})
	}
	slices.SortFunc(unknown, func(a, b UnknownService) int {
		return cmp.Or(cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
	return unknown
}

// ClientsOf returns the clients of these services. If there are any, it scans all outbounds of the meshes.
func (v *View) ClientsOf(services []mesh.ID) map[mesh.ID]Clients {
	all := make(map[mesh.ID]Clients, len(services))
	for _, id := range services {
		all[id] = Clients{}
	}
	if len(all) == 0 {
		return all
	}
	for meshName, m := range v.Meshes {
		for name, p := range m.Proxies.All() {
			for i := range p.Dataplane.Spec.Networking.Outbound {
				o := &p.Dataplane.Spec.Networking.Outbound[i]
				id := mesh.MakeID(meshName, o.Service())
				if c, wanted := all[id]; wanted {
					c.Names = append(c.Names, name)
					c.Ref = cmp.Or(o.BackendRef, c.Ref)
					all[id] = c
				}
			}
		}
	}
	for id, c := range all {
		slices.Sort(c.Names)
		c.Names = slices.Compact(c.Names)
		all[id] = c
	}
	return all
}
