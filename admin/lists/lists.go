package lists

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// by returns a function that reports whether the filter matches an object.
func by(f *adminv1.Filter) func(meshName, name string) bool {
	return func(meshName, name string) bool {
		return (f.GetMesh() == "" || f.GetMesh() == meshName) && (f.GetName() == "" || f.GetName() == name)
	}
}

// tail returns the Tail of a list of objects of one kind. total is the number of matches, all are the IDs of all
// objects of the kind.
func (a *Answers) tail(f *adminv1.Filter, total int, all []mesh.ID) *adminv1.Tail {
	t := &adminv1.Tail{
		LeftOut: uint32(max(total-adminv1.MaxListed, 0)), Problems: slices.Concat(a.Problems(), unknownServices(a.View())),
		MissingReplicas: a.Missing(),
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

// withMissing adds the replicas whose streams the answer does not include.
func withMissing(t *adminv1.Tail, replicas []string) *adminv1.Tail {
	t.MissingReplicas = distinct(t.GetMissingReplicas(), replicas)
	return t
}

// distinct returns the names in a and b without duplicates, sorted.
func distinct(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// collect returns an entry for each ID that matches, in order, up to adminv1.MaxListed, and the number of matches.
func collect[T any](
	matches func(meshName, name string) bool, ids []mesh.ID, entry func(meshName, name string) (T, error),
) ([]T, int, error) {
	slices.Sort(ids)
	var entries []T
	total := 0
	for _, id := range ids {
		meshName, name := mesh.SplitID(id)
		if !matches(meshName, name) {
			continue
		}
		if total++; total > adminv1.MaxListed {
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
func (a *Answers) ListMeshes(ctx context.Context, r *adminv1.ListMeshesRequest) (*adminv1.ListMeshesResponse, error) {
	v, err := a.View.Within(ctx, r.GetFilter().GetMesh())
	if err != nil {
		return nil, err
	}
	connected := map[string]uint32{}
	streams, missing := a.Streams(ctx)
	for id, streams := range streams {
		if _, p := v.Proxy(id); p != nil && len(streams) > 0 {
			connected[p.Dataplane.Mesh]++
		}
	}
	// A mesh is treated as an object in itself, so that mesh and name of the filter mean the same.
	self := func(m *meshview.Mesh) iter.Seq2[string, *meshview.Mesh] {
		return maps.All(map[string]*meshview.Mesh{m.Spec.Name: m})
	}
	all := ids(v, self)
	meshes, total, err := collect(by(r.GetFilter()), all, func(name, _ string) (*adminv1.Mesh, error) {
		m := v.Mesh(name)
		body, err := object(m.Spec)
		entry := &adminv1.Mesh{
			Object: body, Proxies: uint32(m.Proxies.Len()), Connected: connected[name], Services: uint32(m.Services.Len()),
			Recorded: m.Spec.Recorded, Name: name,
		}
		if expires := a.CAExpires(name); !expires.IsZero() {
			entry.CaExpires = timestamppb.New(expires)
		}
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListMeshesResponse{Meshes: meshes, Tail: withMissing(a.tail(r.GetFilter(), total, all), missing)}, nil
}

// ListDataplanes implements adminv1.AdminServiceServer.
func (a *Answers) ListDataplanes(
	ctx context.Context, r *adminv1.ListDataplanesRequest,
) (*adminv1.ListDataplanesResponse, error) {
	v, err := a.View.Within(ctx, r.GetFilter().GetMesh())
	if err != nil {
		return nil, err
	}
	all, services, agents := ids(v, proxies), servicesOfInbounds(v, by(r.GetFilter())), a.Agents.States()
	dataplanes, total, err := collect(by(r.GetFilter()), all, func(meshName, name string) (*adminv1.Dataplane, error) {
		p := v.Mesh(meshName).Proxies.Get(name)
		body, err := a.object(p.Dataplane)
		agent := agents[p.ID()]
		entry := &adminv1.Dataplane{
			Object: body, Draining: drains(p, agent), Stopped: stopped(agent), Inbounds: a.inboundsOf(p, agent, services),
			Drain:     p.Drain().String(),
			Outbounds: a.outboundsOf(p, agent), Pod: p.Dataplane.IsPod(),
			Mesh: meshName, Name: name,
		}
		if entry.GetPod() && a.PodState != nil {
			entry.PodState = a.PodState(name)
		}
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	response := &adminv1.ListDataplanesResponse{Dataplanes: dataplanes, Tail: a.tail(r.GetFilter(), total, all)}
	if r.GetProbeSets() {
		response.ProbeSets = a.probeSets(dataplanes)
	}
	return response, nil
}

// drains reports whether a running proxy is ending, or an operator or Kubernetes drains it.
func drains(p *meshview.Proxy, agent *adminv1.AgentState) bool {
	return p.Observed.Draining && !stopped(agent) || p.Drain().Applies()
}

// ListProxies implements adminv1.AdminServiceServer.
func (a *Answers) ListProxies(
	ctx context.Context, r *adminv1.ListProxiesRequest,
) (*adminv1.ListProxiesResponse, error) {
	v, err := a.View.Within(ctx, r.GetFilter().GetMesh())
	if err != nil {
		return nil, err
	}
	unresponsive, unasked := a.unresponsive(ctx, r)
	streams, missing := a.Streams(ctx)
	agents, states := a.Agents.Agents(), a.Agents.States()
	all := slices.Concat(ids(v, proxies), slices.Collect(maps.Keys(streams)), slices.Collect(maps.Keys(agents)),
		slices.Collect(maps.Keys(states)))
	slices.Sort(all)
	all = slices.Compact(all)
	room := probesRoom{left: adminv1.MaxListedProbes}
	entries, total, err := collect(by(r.GetFilter()), all, func(meshName, name string) (*adminv1.Proxy, error) {
		id := mesh.MakeID(meshName, name)
		_, p := v.Proxy(id)
		entry := &adminv1.Proxy{
			Mesh: meshName, Name: name, Known: p != nil, Agent: agents[id], AgentState: states[id], Streams: streams[id],
			OtherWorkload: otherWorkload(p),
		}
		if agent := entry.GetAgent(); agent != nil {
			agent.Unresponsive = unresponsive[id]
		}
		if p != nil {
			entry.Draining, entry.Drain = drains(p, states[id]), p.Drain().String()
		}
		if r.GetVerdicts() {
			entry.Verdicts = room.fit(a.Agents.Verdicts(id))
		}
		return entry, nil
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListProxiesResponse{Proxies: entries, Tail: withMissing(a.tail(r.GetFilter(), total, all),
		distinct(missing, unasked))}, nil
}

// unresponsive pings the agents if the caller requests it.
func (a *Answers) unresponsive(ctx context.Context, r *adminv1.ListProxiesRequest) (unresponsive map[mesh.ID]bool,
	missing []string) {
	if !r.GetAsk() {
		return nil, nil
	}
	return a.Agents.Unresponsive(ctx, r.GetFilter().GetMesh())
}

// object encodes an object as JSON.
func object(o mesh.Object) ([]byte, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s %q: %w", o.Key().Kind, o.Key().Name, err)
	}
	return body, nil
}
