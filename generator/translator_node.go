package generator

import (
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// nodeSet holds what of a scope differs between nodes: endpoints and listeners of its services that are Local. It exists while a proxy of
// the node is attached.
type nodeSet struct {
	name    string        // of the node, empty for proxies of which nothing says it
	set     *resource.Set // nil if no service of the scope ever was Local
	proxies int
}

// nodeResources are the resources of a service that is Local, as callers on one node have them. They are encoded once for all of these.
type nodeResources struct {
	endpoints *resource.Resource
	listeners []*resource.Resource
}

// encodeNodes encodes what differs between nodes, for those whose callers have it.
func (t *Translator) encodeNodes(r *serviceResources, s *meshview.Service) {
	for node, on := range r.nodes {
		t.encodeNode(on, s.For(node))
	}
}

func (t *Translator) encodeNode(on *nodeResources, s *meshview.Service) {
	on.endpoints = t.encodeOrKeep(on.endpoints, s.Name, LoadAssignment(s), "service "+s.ID())
	on.listeners, _ = t.encodeListeners(on.listeners, s)
}

// joinNode returns the node set, and counts one more proxy of it. A new one is derived from the set that the proxy had.
func (t *Translator) joinNode(s *sharedSet, node string, from *resource.Set) *nodeSet {
	n := s.nodes[node]
	if n == nil {
		n = &nodeSet{name: node, set: t.replaceNode(s, node, from)}
		s.nodes[node] = n
	}
	n.proxies++
	return n
}

// leaveNode counts one proxy less. What only its node set had is forgotten.
func (t *Translator) leaveNode(s *sharedSet, n *nodeSet) {
	if n.proxies--; n.proxies > 0 {
		return
	}
	delete(s.nodes, n.name)
	for _, id := range s.local {
		r := t.services[id]
		if !slices.ContainsFunc(r.sets, func(o *sharedSet) bool { return o.nodes[n.name] != nil }) {
			delete(r.nodes, n.name)
		}
	}
}

// findLocal finds the services of a shared set that are Local.
func (t *Translator) findLocal(s *sharedSet) {
	s.local = nil
	for _, name := range s.scope.Services {
		if id := mesh.MakeID(s.scope.Mesh, name); t.services[id].local {
			s.local = append(s.local, id)
		}
	}
}

// updateNodes makes the node sets of s anew, and reports whether one differs.
func (t *Translator) updateNodes(s *sharedSet) (differs bool) {
	for node, n := range s.nodes {
		before := n.set
		n.set = t.replaceNode(s, node, before)
		differs = differs || n.set != before
	}
	return differs
}

// replaceNode returns the set of a node, as the successor of from.
func (t *Translator) replaceNode(s *sharedSet, node string, from *resource.Set) *resource.Set {
	if len(s.local) == 0 && from == nil {
		return nil
	}
	return replace(from, t.nodeResourcesOf(s, node))
}

// nodeResourcesOf returns the resources of all services that are Local. Of an address that another service has, too, there is no
// listener, or only that of the first by name.
func (t *Translator) nodeResourcesOf(s *sharedSet, node string) []*resource.Resource {
	var want []*resource.Resource
	taken := map[string]bool{}
	for _, at := range s.scope.Outbounds {
		taken[outboundListenerName(at)] = true
	}
	for _, id := range s.local {
		on := t.onNode(id, node)
		if on.endpoints != nil {
			want = append(want, on.endpoints)
		}
		for _, l := range on.listeners {
			if s.scope.Redirected && !taken[l.Name] && s.set.Get(l.Key()) == nil {
				taken[l.Name] = true
				want = append(want, l)
			}
		}
	}
	return want
}

// onNode returns the resources of a service for a node. They are encoded if no proxy has had them.
func (t *Translator) onNode(id mesh.ID, node string) *nodeResources {
	r := t.services[id]
	if on := r.nodes[node]; on != nil {
		return on
	}
	on := &nodeResources{}
	if r.nodes == nil {
		r.nodes = map[string]*nodeResources{}
	}
	r.nodes[node] = on
	if _, s := t.view.Service(id); s != nil {
		t.encodeNode(on, s.For(node))
	}
	return on
}
