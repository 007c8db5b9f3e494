package generator

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// sharedSet holds the resources that all proxies with one scope have. It exists while one of them is attached.
type sharedSet struct {
	scope   *meshview.Scope
	set     *resource.Set
	proxies map[mesh.ID]*attachment
}

// joinShared gives the proxy the shared set of what it can reach now. A new set is derived from the one that the proxy had,
// so that the difference is known and need not be searched for.
func (t *Translator) joinShared(a *attachment, m *meshview.Mesh, p *meshview.Proxy) {
	a.outbounds = len(p.Dataplane.Spec.Networking.Outbound) > 0
	s := t.shared[p.Scope]
	if s != nil && a.shared == s {
		return
	}
	if s == nil {
		s = &sharedSet{scope: p.Scope, proxies: map[mesh.ID]*attachment{}}
		t.fillShared(s, m, a.desired.Shared)
		t.shared[p.Scope] = s
	}
	t.leaveShared(a)
	s.proxies[a.id], a.shared = a, s
}

// leaveShared takes the proxy out of its shared set, if it is in one. A set without proxies is forgotten. The resources of
// the proxy stay as they are.
func (t *Translator) leaveShared(a *attachment) {
	s := a.shared
	if s == nil {
		return
	}
	a.shared = nil
	if delete(s.proxies, a.id); len(s.proxies) > 0 {
		return
	}
	delete(t.shared, s.scope)
	for _, name := range s.scope.Services {
		t.release(mesh.MakeID(s.scope.Mesh, name), s)
	}
}

// fillShared makes the set of s, as the successor of from.
func (t *Translator) fillShared(s *sharedSet, m *meshview.Mesh, from *resource.Set) {
	var put []*resource.Resource
	for _, name := range s.scope.Services {
		put = append(put, t.acquire(m, mesh.MakeID(s.scope.Mesh, name), m.Services.Get(name), s).allButListeners()...)
	}
	put = append(put, t.virtualListeners(s)...)
	s.set = replace(from, put)
}

// virtualListeners returns the listeners of virtual addresses. If two services have the same address, the first by name
// gets it.
func (t *Translator) virtualListeners(s *sharedSet) []*resource.Resource {
	if !s.scope.Redirected {
		return nil
	}
	var listeners []*resource.Resource
	taken := map[string]bool{}
	for _, at := range s.scope.Outbounds {
		taken[outboundListenerName(at)] = true
	}
	for _, name := range s.scope.Services {
		for _, l := range t.services[mesh.MakeID(s.scope.Mesh, name)].listeners {
			if !taken[l.Name] {
				taken[l.Name] = true
				listeners = append(listeners, l)
			}
		}
	}
	return listeners
}

// replace returns a set with the resources want and no others, as the successor of from.
func replace(from *resource.Set, want []*resource.Resource) *resource.Set {
	if from == nil {
		return resource.NewSet(want...)
	}
	return from.With(want, obsolete(from, want, resource.Types()...))
}

// obsolete returns the names of resources of these types that are in the set and not in want.
func obsolete(s *resource.Set, want []*resource.Resource, types ...resource.Type) []resource.Name {
	wanted := make(map[resource.Name]bool, len(want))
	for _, r := range want {
		wanted[r.Key()] = true
	}
	var names []resource.Name
	for _, typ := range types {
		for _, r := range s.Of(typ) {
			if !wanted[r.Key()] {
				names = append(names, r.Key())
			}
		}
	}
	return names
}

// updateShared puts the resources of changed services into the shared sets that hold them. It adds the proxies of these sets
// to affected, with their own set if their own listeners may differ.
func (t *Translator) updateShared(changed []changedService, affected affectedProxies) {
	bySet := map[*sharedSet][]changedService{}
	for _, c := range changed {
		for _, s := range c.resources.sets {
			bySet[s] = append(bySet[s], c)
		}
	}
	for s, services := range bySet {
		differs, protocols := t.updateSet(s, services)
		if !differs && !protocols {
			continue
		}
		for id, a := range s.proxies {
			affected.add(id, protocols && a.outbounds)
		}
	}
}

// updateSet puts the resources of changed services into one shared set. It returns whether the set differs, and whether the
// protocol of a service does.
func (t *Translator) updateSet(s *sharedSet, services []changedService) (differs, protocols bool) {
	var put []*resource.Resource
	var remove []resource.Name
	listeners := false
	for _, c := range services {
		put = append(put, c.resources.allButListeners()...)
		if c.resources.route == nil {
			_, name := mesh.SplitID(c.id)
			remove = append(remove, resource.Name{Type: resource.Route, Name: name})
		}
		protocols = protocols || c.protocol
		listeners = listeners || c.listeners
	}
	if listeners && s.scope.Redirected {
		want := t.virtualListeners(s)
		put, remove = append(put, want...), append(remove, obsolete(s.set, want, resource.Listener)...)
	}
	before := s.set
	s.set = s.set.With(put, remove)
	return s.set != before, protocols
}
