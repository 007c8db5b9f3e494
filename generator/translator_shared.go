package generator

import (
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// sharedKey is the same for proxies that share a set.
type sharedKey struct {
	mesh       string
	redirected bool
	sees       string
	// hidden are the names of a redirected proxy's own outbound listeners: they go before a virtual address of the same
	// ip:port. Mostly there are none.
	hidden string
}

// sharedSet is what the proxies of one key have in common. It lives while one of them is attached.
type sharedSet struct {
	key     sharedKey
	sees    []string
	hidden  []string
	set     *resource.Set
	proxies map[mesh.ID]*attachment
}

// joinedNames remembers the last key made from names: most proxies of a mesh see the same slice.
type joinedNames struct {
	names []string
	key   string
}

func (j *joinedNames) of(names []string) string {
	if len(names) == 0 {
		return ""
	}
	if len(j.names) != len(names) || &j.names[0] != &names[0] {
		j.names, j.key = names, strings.Join(names, "\n")
	}
	return j.key
}

// join gives the proxy the shared set of what it sees now. A new set is made from the one that the proxy had, so that
// what differs is known and not searched for.
func (t *Translator) join(a *attachment, m *meshview.Mesh, p *meshview.Proxy, errs *[]error) {
	a.outbounds = len(p.Dataplane.Spec.Networking.Outbound) > 0
	key := sharedKey{
		mesh:       p.Dataplane.Mesh,
		redirected: p.Dataplane.Spec.Networking.TransparentProxying != nil,
		sees:       t.joined.of(p.VisibleServices),
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
		s = &sharedSet{key: key, sees: p.VisibleServices, hidden: hidden, proxies: map[mesh.ID]*attachment{}}
		t.fill(s, m, a.desired.Shared, errs)
		t.shared[key] = s
	}
	t.leave(a)
	s.proxies[a.id], a.shared = a, s
}

// outboundNames are those of the proxy's own outbound listeners, sorted.
func outboundNames(p *meshview.Proxy) []string {
	var names []string
	for _, o := range p.Dataplane.Spec.Networking.Outbound {
		names = append(names, OutboundListenerName(addrPort(o.Address, o.Port)))
	}
	slices.Sort(names)
	return names
}

// leave takes the proxy out of its shared set, if it is in one, and forgets the set with its last proxy. What the proxy
// has stays as it is.
func (t *Translator) leave(a *attachment) {
	s := a.shared
	if s == nil {
		return
	}
	a.shared = nil
	if delete(s.proxies, a.id); len(s.proxies) > 0 {
		return
	}
	delete(t.shared, s.key)
	for _, name := range s.sees {
		t.release(mesh.MakeID(s.key.mesh, name))
	}
}

// fill makes the whole set.
func (t *Translator) fill(s *sharedSet, m *meshview.Mesh, from *resource.Set, errs *[]error) {
	var put []*resource.Resource
	for _, name := range s.sees {
		put = append(put, t.acquire(m, mesh.MakeID(s.key.mesh, name), m.Services[name], errs).common()...)
	}
	put = append(put, t.listeners(s)...)
	s.set = replace(from, put)
}

// listeners of virtual addresses. Where two services claim one, the first by name has it.
func (t *Translator) listeners(s *sharedSet) []*resource.Resource {
	if !s.key.redirected {
		return nil
	}
	var listeners []*resource.Resource
	taken := map[string]bool{}
	for _, name := range s.hidden {
		taken[name] = true
	}
	for _, name := range s.sees {
		for _, l := range t.services[mesh.MakeID(s.key.mesh, name)].listeners {
			if !taken[l.Name] {
				taken[l.Name] = true
				listeners = append(listeners, l)
			}
		}
	}
	return listeners
}

// replace returns the set that holds want and nothing else, as the successor of from.
func replace(from *resource.Set, want []*resource.Resource) *resource.Set {
	if from == nil {
		return resource.NewSet(want...)
	}
	return from.With(want, others(from, want, resource.Types()...))
}

// others are the names of these types that are in the set and not wanted.
func others(s *resource.Set, want []*resource.Resource, types ...resource.Type) []resource.Name {
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

// patch puts what was touched into a shared set. It adds to affected the proxies whose shared set is another one now,
// and to own those whose own listeners differ.
func (t *Translator) patch(s *sharedSet, touched map[string]touch, affected, own map[mesh.ID]struct{}) {
	var put []*resource.Resource
	var remove []resource.Name
	var protocols, listeners bool
	for _, name := range s.seen(touched) {
		r := t.services[mesh.MakeID(s.key.mesh, name)]
		put = append(put, r.common()...)
		if r.route == nil {
			remove = append(remove, resource.Name{Type: resource.Route, Name: name})
		}
		protocols = protocols || touched[name].protocol
		listeners = listeners || touched[name].listeners
	}
	if listeners && s.key.redirected {
		want := t.listeners(s)
		put, remove = append(put, want...), append(remove, others(s.set, want, resource.Listener)...)
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

// seen are those of the touched services that the set holds.
func (s *sharedSet) seen(touched map[string]touch) []string {
	var names []string
	if len(touched) > len(s.sees) {
		for _, name := range s.sees {
			if _, ok := touched[name]; ok {
				names = append(names, name)
			}
		}
		return names
	}
	for name := range touched {
		if _, ok := slices.BinarySearch(s.sees, name); ok {
			names = append(names, name)
		}
	}
	return names
}
