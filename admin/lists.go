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
func (s *service) filtered(ctx context.Context, f *adminv1.Filter) (*meshview.View, error) {
	v, err := s.view(ctx)
	if err == nil && f.GetMesh() != "" && v.Mesh(f.GetMesh()) == nil {
		return nil, noMesh(v, f.GetMesh())
	}
	return v, err
}

// by returns what reports whether the filter matches an object.
func by(f *adminv1.Filter) func(meshName, name string) bool {
	return func(meshName, name string) bool {
		return (f.GetMesh() == "" || f.GetMesh() == meshName) && (f.GetName() == "" || f.GetName() == name)
	}
}

// tail returns the Tail of a list of objects of one kind, of which total match the filter. all are the IDs of all objects of the kind.
func (s *service) tail(f *adminv1.Filter, total int, all []mesh.ID) *adminv1.Tail {
	t := &adminv1.Tail{
		LeftOut: uint32(max(total-maxListed, 0)), Problems: slices.Concat(s.o.Problems(), unknownServices(s.o.View())), MissingReplicas: s.o.Missing(),
	}
	if total == 0 && f.GetName() != "" {
		var known []string
		for _, id := range all {
			if meshName, name := mesh.SplitID(id); f.GetMesh() == "" || meshName == f.GetMesh() {
				known = append(known, name)
			}
		}
		slices.Sort(known)
		t.Near, _ = mesh.Nearest(f.GetName(), known)
	}
	return t
}

// withMissing adds replicas whose streams are not in the answer.
func withMissing(t *adminv1.Tail, replicas []string) *adminv1.Tail {
	t.MissingReplicas = distinct(t.GetMissingReplicas(), replicas)
	return t
}

// distinct returns the names of both, sorted.
func distinct(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// collect returns an entry for each ID that matches, in order, up to maxListed, and the number of matches.
func collect[T any](matches func(meshName, name string) bool, ids []mesh.ID, entry func(meshName, name string) (T, error)) ([]T, int, error) {
	slices.Sort(ids)
	var entries []T
	total := 0
	for _, id := range ids {
		meshName, name := mesh.SplitID(id)
		if !matches(meshName, name) {
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
func (s *service) ListMeshes(ctx context.Context, r *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	v, err := s.filtered(ctx, r.GetFilter())
	if err != nil {
		return nil, err
	}
	connected := map[string]uint32{}
	streams, missing := s.o.Streams(ctx)
	for id, streams := range streams {
		if _, p := v.Proxy(id); p != nil && len(streams) > 0 {
			connected[p.Dataplane.Mesh]++
		}
	}
	// Treat a mesh as an object in itself, so that the filter's mesh and name mean the same.
	self := func(m *meshview.Mesh) iter.Seq2[string, *meshview.Mesh] {
		return maps.All(map[string]*meshview.Mesh{m.Spec.Name: m})
	}
	all := ids(v, self)
	meshes, total, err := collect(by(r.GetFilter()), all, func(name, _ string) (*adminv1.Mesh, error) {
		m := v.Mesh(name)
		body, err := object(m.Spec)
		entry := &adminv1.Mesh{
			Object: body, Proxies: uint32(m.Proxies.Len()), Connected: connected[name], Services: uint32(m.Services.Len()), Recorded: m.Spec.Recorded,
		}
		if expires := s.o.CAExpires(name); !expires.IsZero() {
			entry.CaExpires = timestamppb.New(expires)
		}
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListMeshesResponse{Meshes: meshes, Tail: withMissing(s.tail(r.GetFilter(), total, all), missing)}, nil
}

// ListDataplanes implements adminv1.AdminServiceServer.
func (s *service) ListDataplanes(ctx context.Context, r *adminv1.ListDataplanesRequest) (*adminv1.ListDataplanesResponse, error) {
	v, err := s.filtered(ctx, r.GetFilter())
	if err != nil {
		return nil, err
	}
	all, services, agents := ids(v, proxies), servicesOfInbounds(v, by(r.GetFilter())), s.o.AgentStates()
	dataplanes, total, err := collect(by(r.GetFilter()), all, func(meshName, name string) (*adminv1.Dataplane, error) {
		p := v.Mesh(meshName).Proxies.Get(name)
		body, err := object(p.Dataplane)
		agent := agents[p.ID()]
		return &adminv1.Dataplane{
			Object: body, Draining: drains(p, agent), Stopped: stopped(agent), Inbounds: s.inboundsOf(p, agent, services), Drain: p.Drain().String(),
			Outbounds: s.outboundsOf(p, agent), Pod: p.Dataplane.IsPod(),
		}, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListDataplanesResponse{Dataplanes: dataplanes, Tail: s.tail(r.GetFilter(), total, all)}, nil
}

// drains reports whether a running proxy is ending, or an operator or Kubernetes drains it.
func drains(p *meshview.Proxy, agent *adminv1.AgentState) bool {
	return p.Observed.Draining && !stopped(agent) || p.Drain().Applies()
}

// ListProxies implements adminv1.AdminServiceServer.
func (s *service) ListProxies(ctx context.Context, r *adminv1.ListProxiesRequest) (*adminv1.ListProxiesResponse, error) {
	v, err := s.filtered(ctx, r.GetFilter())
	if err != nil {
		return nil, err
	}
	unresponsive, unasked := s.unresponsive(ctx, r)
	streams, missing := s.o.Streams(ctx)
	agents, states := s.o.Agents(), s.o.AgentStates()
	all := slices.Concat(ids(v, proxies), slices.Collect(maps.Keys(streams)), slices.Collect(maps.Keys(agents)), slices.Collect(maps.Keys(states)))
	slices.Sort(all)
	all = slices.Compact(all)
	entries, total, err := collect(by(r.GetFilter()), all, func(meshName, name string) (*adminv1.Proxy, error) {
		id := mesh.MakeID(meshName, name)
		_, p := v.Proxy(id)
		entry := &adminv1.Proxy{
			Mesh: meshName, Name: name, Known: p != nil, Agent: agents[id], AgentState: states[id], Streams: streams[id], OtherWorkload: otherWorkload(p),
		}
		if agent := entry.GetAgent(); agent != nil {
			agent.Unresponsive = unresponsive[id]
		}
		if p != nil {
			entry.Draining, entry.Drain = drains(p, states[id]), p.Drain().String()
		}
		return entry, nil
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListProxiesResponse{Proxies: entries, Tail: withMissing(s.tail(r.GetFilter(), total, all), distinct(missing, unasked))}, nil
}

// unresponsive asks the agents whether they live, if the caller wants it.
func (s *service) unresponsive(ctx context.Context, r *adminv1.ListProxiesRequest) (unresponsive map[mesh.ID]bool, missing []string) {
	if !r.GetAsk() {
		return nil, nil
	}
	return s.o.Unresponsive(ctx, r.GetFilter().GetMesh())
}
