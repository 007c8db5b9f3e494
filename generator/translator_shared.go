package generator

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// sharedSet holds the resources that all proxies with one scope have. It exists while one of these proxies is attached.
type sharedSet struct {
	scope   *meshview.Scope
	set     *resource.Set
	proxies map[mesh.ID]*attachment
	local   []mesh.ID           // the Local services, by name
	nodes   map[string]*nodeSet // node sets of the proxies' nodes
}

// joinShared gives the proxy the shared set of its current scope. A new set is derived from the proxy's previous set,
// so that their difference is known without a search.
func (t *Translator) joinShared(a *attachment, m *meshview.Mesh, p *meshview.Proxy) {
	a.outbounds = len(p.Dataplane.Spec.Networking.Outbound) > 0
	s, node := t.shared[p.Scope], p.Dataplane.Node()
	if s != nil && a.shared == s && a.node.name == node {
		return
	}
	if s == nil {
		s = &sharedSet{scope: p.Scope, proxies: map[mesh.ID]*attachment{}, nodes: map[string]*nodeSet{}}
		t.fillShared(s, m, a.desired.Shared)
		t.shared[p.Scope] = s
	}
	joined := t.joinNode(s, node, a.desired.Node)
	if a.shared == s {
		t.leaveNode(s, a.node)
	} else {
		t.leaveShared(a)
	}
	s.proxies[a.id], a.shared, a.node = a, s, joined
}

// leaveShared removes the proxy from its shared set, if it is in one, and drops a set without proxies. The resources of
// the proxy do not change.
func (t *Translator) leaveShared(a *attachment) {
	s := a.shared
	if s == nil {
		return
	}
	t.leaveNode(s, a.node)
	a.shared, a.node = nil, nil
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
	t.findLocal(s)
}

// virtualListeners returns the listeners of virtual addresses that are the same on all nodes. If several services have
// the same address, the first by name gets it; Local services come last, see nodeResourcesOf.
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

// replace returns a set with exactly the resources in want, as the successor of from.
func replace(from *resource.Set, want []*resource.Resource) *resource.Set {
	if from == nil {
		return resource.NewSet(want...)
	}
	return from.With(want, obsolete(from, want, resource.Types()...))
}

// obsolete returns the names of resources of these types that are in the set but not in want.
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

// updateShared puts the resources of changed services into the shared sets that contain them. It adds the proxies of
// these sets to affected, together with their own sets if their own listeners may differ.
func (t *Translator) updateShared(changed []changedService, affected affectedProxies) {
	bySet := map[*sharedSet][]changedService{}
	for _, c := range changed {
		for _, s := range c.resources.sets {
			bySet[s] = append(bySet[s], c)
		}
	}
	for s, services := range bySet {
		differs, own, nodes := t.updateSet(s, services)
		if !differs && !own && len(nodes) == 0 {
			continue
		}
		for id, a := range s.proxies {
			if _, of := nodes[a.node.name]; differs || own || of {
				affected.add(id, (own || of) && a.outbounds)
			}
		}
	}
}

// updateSet puts the resources of changed services into one shared set and its node sets. It reports whether the shared
// set differs and whether own listeners of all its proxies may differ. It also returns the nodes whose proxies may have
// different resources.
func (t *Translator) updateSet(s *sharedSet, services []changedService) (differs, own bool, nodes map[string]struct{}) {
	var put []*resource.Resource
	var remove []resource.Name
	var listeners, flipped bool
	nodes = map[string]struct{}{}
	for _, c := range services {
		put = append(put, c.resources.allButListeners()...)
		_, name := mesh.SplitID(c.id)
		if c.resources.route == nil {
			remove = append(remove, resource.Name{Type: resource.Route, Name: name})
		}
		if c.resources.local {
			remove = append(remove, resource.Name{Type: resource.Endpoint, Name: name})
		}
		own = own || c.own
		listeners, flipped = listeners || c.listeners, flipped || c.flipped
		for _, node := range c.nodes {
			nodes[node] = struct{}{}
		}
	}
	if listeners && s.scope.Redirected {
		want := t.virtualListeners(s)
		put, remove = append(put, want...), append(remove, obsolete(s.set, want, resource.Listener)...)
	}
	before := s.set
	s.set = s.set.With(put, remove)
	if flipped {
		t.findLocal(s)
	}
	if flipped || listeners && len(s.local) > 0 { // an address may now belong to another service
		for node := range s.nodes {
			nodes[node] = struct{}{}
		}
	}
	t.updateNodes(s, nodes)
	return s.set != before, own, nodes
}
