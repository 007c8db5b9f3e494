package generator

import (
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// sharedKey is equal for proxies that share a set.
type sharedKey struct {
	mesh       string
	redirected bool
	services   string
	// hidden are the names of a redirected proxy's own outbound listeners, which take precedence over a virtual address
	// with the same ip:port. There are mostly none.
	hidden string
}

// sharedSet holds the resources that all proxies with one key have. It exists while one of them is attached.
type sharedSet struct {
	key      sharedKey
	services []string
	hidden   []string
	set      *resource.Set
	proxies  map[mesh.ID]*attachment
}

// keyCache remembers the last key made from names: most proxies of a mesh share one slice of names.
type keyCache struct {
	names []string
	key   string
}

func (j *keyCache) of(names []string) string {
	if len(names) == 0 {
		return ""
	}
	if len(j.names) != len(names) || &j.names[0] != &names[0] {
		j.names, j.key = names, strings.Join(names, "\n")
	}
	return j.key
}

// joinShared gives the proxy the shared set of the services that it sees now. A new set is derived from the one that the
// proxy had, so that the difference is known and need not be searched for.
func (t *Translator) joinShared(a *attachment, m *meshview.Mesh, p *meshview.Proxy, errs *[]error) {
	a.outbounds = len(p.Dataplane.Spec.Networking.Outbound) > 0
	key := sharedKey{
		mesh:       p.Dataplane.Mesh,
		redirected: p.Dataplane.Spec.Networking.TransparentProxying != nil,
		services:   t.keys.of(p.VisibleServices),
	}
	var hidden []string
	if key.redirected {
		hidden = outboundNames(p)
		key.hidden = strings.Join(hidden, "\n")
	}
	s := t.shared[key]
	if s != nil && a.shared == s {
		return
	}
	if s == nil {
		s = &sharedSet{key: key, services: p.VisibleServices, hidden: hidden, proxies: map[mesh.ID]*attachment{}}
		t.fillShared(s, m, a.desired.Shared, errs)
		t.shared[key] = s
	}
	t.leaveShared(a)
	s.proxies[a.id], a.shared = a, s
}

// outboundNames returns the names of the proxy's own outbound listeners, sorted.
func outboundNames(p *meshview.Proxy) []string {
	var names []string
	for _, o := range p.Dataplane.Spec.Networking.Outbound {
		names = append(names, outboundListenerName(addrPort(o.Address, o.Port)))
	}
	slices.Sort(names)
	return names
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
	delete(t.shared, s.key)
	for _, name := range s.services {
		t.release(mesh.MakeID(s.key.mesh, name))
	}
}

// fillShared makes the set of s, as the successor of from.
func (t *Translator) fillShared(s *sharedSet, m *meshview.Mesh, from *resource.Set, errs *[]error) {
	var put []*resource.Resource
	for _, name := range s.services {
		put = append(put, t.acquire(m, mesh.MakeID(s.key.mesh, name), m.Services[name], errs).allButListeners()...)
	}
	put = append(put, t.virtualListeners(s)...)
	s.set = replace(from, put)
}

// virtualListeners returns the listeners of virtual addresses. If two services have the same address, the first by name
// gets it.
func (t *Translator) virtualListeners(s *sharedSet) []*resource.Resource {
	if !s.key.redirected {
		return nil
	}
	var listeners []*resource.Resource
	taken := map[string]bool{}
	for _, name := range s.hidden {
		taken[name] = true
	}
	for _, name := range s.services {
		for _, l := range t.services[mesh.MakeID(s.key.mesh, name)].listeners {
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

// updateShared puts the resources of changed services into a shared set. It adds the proxies of the set to affected if
// anything may differ for them, and to own if their own listeners may differ.
func (t *Translator) updateShared(s *sharedSet, changed map[string]changedParts, affected, own map[mesh.ID]struct{}) {
	var put []*resource.Resource
	var remove []resource.Name
	var protocols, listeners bool
	for _, name := range s.visible(changed) {
		r := t.services[mesh.MakeID(s.key.mesh, name)]
		put = append(put, r.allButListeners()...)
		if r.route == nil {
			remove = append(remove, resource.Name{Type: resource.Route, Name: name})
		}
		protocols = protocols || changed[name].protocol
		listeners = listeners || changed[name].listeners
	}
	if listeners && s.key.redirected {
		want := t.virtualListeners(s)
		put, remove = append(put, want...), append(remove, obsolete(s.set, want, resource.Listener)...)
	}
	before := s.set
	s.set = s.set.With(put, remove)
	if s.set == before && !protocols {
		return
	}
	for id, a := range s.proxies {
		affected[id] = struct{}{}
		if protocols && a.outbounds {
			own[id] = struct{}{}
		}
	}
}

// visible returns those of the changed services that the set holds.
func (s *sharedSet) visible(changed map[string]changedParts) []string {
	var names []string
	if len(changed) > len(s.services) {
		for _, name := range s.services {
			if _, ok := changed[name]; ok {
				names = append(names, name)
			}
		}
		return names
	}
	for name := range changed {
		if _, ok := slices.BinarySearch(s.services, name); ok {
			names = append(names, name)
		}
	}
	return names
}
