package admin

import (
	"context"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// maxListed is how many entries one response holds. The Tail of a longer list says how many are left out.
const maxListed = 5000

// filtered returns the view, or NOT_FOUND if the mesh that the filter names does not exist.
func (s *service) filtered(f *adminv1.Filter) (*meshview.View, error) {
	v, err := s.view()
	if err == nil && f.GetMesh() != "" && v.Mesh(f.GetMesh()) == nil {
		return nil, noMesh(f.GetMesh())
	}
	return v, err
}

// matches reports whether the filter matches an object.
func matches(f *adminv1.Filter, meshName, name string) bool {
	return (f.GetMesh() == "" || f.GetMesh() == meshName) && (f.GetName() == "" || f.GetName() == name)
}

// tail returns the Tail of a list with total entries.
func (s *service) tail(total int) *adminv1.Tail {
	return &adminv1.Tail{LeftOut: uint32(max(total-maxListed, 0)), Problems: s.o.Problems()}
}

// collect returns an entry for each ID that the filter matches, in order, up to maxListed, and the number of matches.
func collect[T any](f *adminv1.Filter, ids []mesh.ID, entry func(meshName, name string) (T, error)) ([]T, int, error) {
	slices.Sort(ids)
	var entries []T
	total := 0
	for _, id := range ids {
		meshName, name := mesh.SplitID(id)
		if !matches(f, meshName, name) {
			continue
		}
		if total++; total > maxListed {
			continue
		}
		e, err := entry(meshName, name)
		if err != nil {
			return nil, 0, err
		}
		entries = append(entries, e)
	}
	return entries, total, nil
}

// ids returns the IDs of one kind of object in all meshes.
func ids[T any](v *meshview.View, of func(*meshview.Mesh) iter.Seq2[string, *T]) []mesh.ID {
	var all []mesh.ID
	for meshName, m := range v.Meshes {
		for name := range of(m) {
			all = append(all, mesh.MakeID(meshName, name))
		}
	}
	return all
}

func proxies(m *meshview.Mesh) iter.Seq2[string, *meshview.Proxy] { return m.Proxies.All() }

// ListMeshes implements adminv1.AdminServiceServer.
func (s *service) ListMeshes(_ context.Context, r *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	v, err := s.filtered(r.GetFilter())
	if err != nil {
		return nil, err
	}
	connected := map[string]uint32{}
	for id, streams := range s.o.Streams() {
		if _, p := v.Proxy(id); p != nil && len(streams) > 0 {
			connected[p.Dataplane.Mesh]++
		}
	}
	// Treat a mesh as an object in itself, so that the filter's mesh and name mean the same.
	self := func(m *meshview.Mesh) iter.Seq2[string, *meshview.Mesh] {
		return maps.All(map[string]*meshview.Mesh{m.Spec.Name: m})
	}
	meshes, total, err := collect(r.GetFilter(), ids(v, self), func(name, _ string) (*adminv1.Mesh, error) {
		m := v.Mesh(name)
		body, err := object(m.Spec)
		entry := &adminv1.Mesh{
			Object: body, Proxies: uint32(m.Proxies.Len()), Connected: connected[name], Services: uint32(m.Services.Len()),
		}
		if expires := s.o.CAExpires(name); !expires.IsZero() {
			entry.CaExpires = timestamppb.New(expires)
		}
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListMeshesResponse{Meshes: meshes, Tail: s.tail(total)}, nil
}

// ListDataplanes implements adminv1.AdminServiceServer.
func (s *service) ListDataplanes(_ context.Context, r *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	v, err := s.filtered(r.GetFilter())
	if err != nil {
		return nil, err
	}
	dataplanes, total, err := collect(r.GetFilter(), ids(v, proxies), func(meshName, name string) (*adminv1.Dataplane, error) {
		p := v.Mesh(meshName).Proxies.Get(name)
		body, err := object(p.Dataplane)
		return &adminv1.Dataplane{Object: body, Draining: p.Observed.Draining, Inbounds: inboundsOf(p)}, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListDataplanesResponse{Dataplanes: dataplanes, Tail: s.tail(total)}, nil
}

// ListServices implements adminv1.AdminServiceServer.
func (s *service) ListServices(_ context.Context, r *adminv1.ListServicesRequest) (*adminv1.ListServicesResponse, error) {
	v, err := s.filtered(r.GetFilter())
	if err != nil {
		return nil, err
	}
	all := ids(v, func(m *meshview.Mesh) iter.Seq2[string, *meshview.Service] { return m.Services.All() })
	agents := s.o.AgentStates()
	services, total, err := collect(r.GetFilter(), all, func(meshName, name string) (*adminv1.Service, error) {
		return serviceEntry(v.Mesh(meshName), name, agents), nil
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListServicesResponse{Services: services, Tail: s.tail(total)}, nil
}

func serviceEntry(m *meshview.Mesh, name string, agents map[mesh.ID]*adminv1.AgentState) *adminv1.Service {
	service := m.Services.Get(name)
	entry := &adminv1.Service{
		Mesh: service.Mesh, Name: service.Name, Protocol: string(service.Protocol), Identities: service.Identities,
		Headless: service.Headless,
	}
	for _, address := range service.Addresses {
		entry.Addresses = append(entry.Addresses, address.String())
	}
	for _, e := range service.Endpoints {
		entry.Endpoints = append(entry.Endpoints, endpointOf(m, e, agents))
	}
	return entry
}

// ListProxies implements adminv1.AdminServiceServer.
func (s *service) ListProxies(_ context.Context, r *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	v, err := s.filtered(r.GetFilter())
	if err != nil {
		return nil, err
	}
	streams, agents, states := s.o.Streams(), s.o.Agents(), s.o.AgentStates()
	all := slices.Concat(ids(v, proxies), slices.Collect(maps.Keys(streams)), slices.Collect(maps.Keys(agents)), slices.Collect(maps.Keys(states)))
	slices.Sort(all)
	entries, total, err := collect(r.GetFilter(), slices.Compact(all), func(meshName, name string) (*adminv1.Proxy, error) {
		id := mesh.MakeID(meshName, name)
		_, p := v.Proxy(id)
		return &adminv1.Proxy{
			Mesh: meshName, Name: name, Known: p != nil, Agent: agents[id], AgentState: states[id], Streams: streams[id],
			Draining: p != nil && p.Observed.Draining, OtherWorkload: otherWorkload(p),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListProxiesResponse{Proxies: entries, Tail: s.tail(total)}, nil
}
