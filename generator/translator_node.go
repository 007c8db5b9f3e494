package generator

import (
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// nodeSet holds the part of a scope that differs between nodes: endpoints and listeners of its Local services. It
// exists while a proxy of the node is attached.
type nodeSet struct {
	name    string        // name of the node; empty for proxies with an unknown node
	set     *resource.Set // nil if no service of the scope ever was Local
	proxies int
}

// nodeResources are the resources of a Local service, as callers on one node get them. They are encoded once for all
// these callers.
type nodeResources struct {
	of        []meshview.Endpoint // endpoints of the service on the node
	endpoints *resource.Resource
	listeners []*resource.Resource
}

// encodeNodes encodes the resources that differ between nodes, for nodes with callers: for all of them, or only for
// nodes whose endpoints differ. It returns the names of these nodes.
func (t *Translator) encodeNodes(r *serviceResources, s *meshview.Service, all bool) (nodes []string) {
	byNode := s.ByNode()
	for node, on := range r.nodes {
		if all || !slices.Equal(on.of, byNode[node]) {
			t.encodeNode(on, s.With(byNode[node]))
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (t *Translator) encodeNode(on *nodeResources, s *meshview.Service) {
	on.of = s.Endpoints
	on.endpoints = t.encodeOrKeep(on.endpoints, s.Name, LoadAssignment(s), "service "+s.ID())
	on.listeners, _ = t.encodeListeners(on.listeners, s)
}

// joinNode returns the node set, and adds one proxy to its count. A new set is derived from the proxy's previous set.
func (t *Translator) joinNode(s *sharedSet, node string, from *resource.Set) *nodeSet {
	n := s.nodes[node]
	if n == nil {
		n = &nodeSet{name: node, set: t.replaceNode(s, node, from)}
		s.nodes[node] = n
	}
	n.proxies++
	return n
}

// leaveNode subtracts one proxy from the node set's count. It drops resources that only this node set used.
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

// findLocal finds the Local services of a shared set.
func (t *Translator) findLocal(s *sharedSet) {
	s.local = nil
	for _, name := range s.scope.Services {
		if id := mesh.MakeID(s.scope.Mesh, name); t.services[id].local {
			s.local = append(s.local, id)
		}
	}
}

// updateNodes rebuilds the sets of these nodes.
func (t *Translator) updateNodes(s *sharedSet, nodes map[string]struct{}) {
	for node := range nodes {
		if n := s.nodes[node]; n != nil {
			n.set = t.replaceNode(s, node, n.set)
		}
	}
}

// replaceNode returns the set of a node, as the successor of from.
func (t *Translator) replaceNode(s *sharedSet, node string, from *resource.Set) *resource.Set {
	if len(s.local) == 0 && from == nil {
		return nil
	}
	return replace(from, t.nodeResourcesOf(s, node))
}

// nodeResourcesOf returns the resources of all Local services. An address of several services gets only the listener of
// the first service by name, or none.
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

// onNode returns the resources of a service for a node. It encodes them if no proxy has them yet.
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
