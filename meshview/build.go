package meshview

import (
	"maps"
	"reflect"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// next makes the view after before from what was touched since.
func (s *state) next(before *View) (Change, bool) {
	meshes := map[string]*Mesh{}
	if before != nil {
		meshes = maps.Clone(before.Meshes)
	}
	change := Change{Before: before}
	changed := before == nil
	for name := range s.dirty {
		in, old := s.meshes[name], before.Mesh(name)
		now := s.buildMesh(name, in, old, &change)
		clear(in.dirtyServices)
		clear(in.dirtyProxies)
		if in.spec == nil && len(in.proxies) == 0 && len(in.services) == 0 {
			delete(s.meshes, name)
		}
		switch now {
		case old:
			continue
		case nil:
			delete(meshes, name)
		default:
			meshes[name] = now
		}
		changed = true
	}
	clear(s.dirty)
	if !changed {
		return Change{}, false
	}
	change.After = &View{Generation: 1, Meshes: meshes}
	if before != nil {
		change.After.Generation = before.Generation + 1
	}
	for _, ids := range []*[]mesh.ID{&change.Services, &change.Endpoints, &change.Proxies} {
		slices.Sort(*ids)
		*ids = slices.Compact(*ids)
	}
	return change, true
}

// buildMesh returns old itself if nothing differs, nil for a mesh that does not exist.
func (s *state) buildMesh(name string, in *meshInput, old *Mesh, c *Change) *Mesh {
	b := &meshBuild{state: s, name: name, in: in, change: c, old: old}
	switch {
	case in.spec == nil:
		b.leave()
		return nil
	case old == nil:
		b.old = &Mesh{}
		b.everything()
	}
	b.now = Mesh{Spec: in.spec, Services: b.old.Services, Proxies: b.old.Proxies}
	b.services()
	b.proxies()
	if b.now.Services == nil {
		b.now.Services = map[string]*Service{}
	}
	if b.now.Proxies == nil {
		b.now.Proxies = map[string]*Proxy{}
	}
	if old != nil && mode(old.Spec) != mode(in.spec) {
		b.listAll()
	}
	if old != nil && !b.ownServices && !b.ownProxies && reflect.DeepEqual(old.Spec, in.spec) {
		return old
	}
	now := b.now // a pointer into b would hold old, and so every mesh that ever was
	return &now
}

// mode is all that resources depend on in a Mesh; "" where mutual TLS is off.
func mode(m *mesh.Mesh) mesh.MTLSMode {
	if b := m.Backend(); b != nil {
		return b.Mode
	}
	return ""
}

// meshBuild is the making of one mesh of one view.
type meshBuild struct {
	state  *state
	name   string
	in     *meshInput
	change *Change
	old    *Mesh
	now    Mesh
	// The maps of now are those of old until the first difference.
	ownServices, ownProxies bool
	addressesFlipped        bool
}

// everything is looked at where a mesh comes.
func (b *meshBuild) everything() {
	for name := range b.in.services {
		b.in.dirtyServices[name] = struct{}{}
	}
	for name := range b.in.proxies {
		b.in.dirtyProxies[name] = struct{}{}
	}
}

// leave takes the mesh out of the view; its input stays, for the case that it comes back.
func (b *meshBuild) leave() {
	for name := range b.in.dirtyServices {
		b.prune(name)
	}
	for name, p := range b.in.proxies {
		b.in.look(p, nil)
		if p.dataplane == nil {
			delete(b.in.proxies, name)
		}
	}
	b.in.addressed = nil
	if b.old == nil {
		return
	}
	b.now = *b.old
	b.listAll()
	for name := range b.old.Services {
		b.change.Endpoints = append(b.change.Endpoints, mesh.MakeID(b.name, name))
	}
}

func (b *meshBuild) listAll() {
	for name := range b.now.Services {
		b.change.Services = append(b.change.Services, mesh.MakeID(b.name, name))
	}
	for name := range b.now.Proxies {
		b.change.Proxies = append(b.change.Proxies, mesh.MakeID(b.name, name))
	}
}

// prune forgets a service that is nothing any more.
func (b *meshBuild) prune(name string) {
	in := b.in.services[name]
	if in.object == nil && len(in.inbounds) == 0 && in.clients == 0 {
		delete(b.in.services, name)
	}
}

func (b *meshBuild) services() {
	for name := range b.in.dirtyServices {
		old, now := b.old.Services[name], b.state.buildService(b.name, name, b.in.services[name])
		b.prune(name)
		cluster, endpoints := differ(old, now)
		if !cluster && !endpoints {
			continue
		}
		id := mesh.MakeID(b.name, name)
		if cluster {
			b.change.Services = append(b.change.Services, id)
		}
		if endpoints {
			b.change.Endpoints = append(b.change.Endpoints, id)
		}
		b.addressesFlipped = b.addressesFlipped || hasAddress(old) != hasAddress(now)
		if !b.ownServices {
			b.now.Services, b.ownServices = clone(b.now.Services), true
		}
		if now == nil {
			delete(b.now.Services, name)
		} else {
			b.now.Services[name] = now
		}
	}
}

// differ says whether what a Cluster, a route or a listener is made of differs, and whether the endpoints do. The first
// sidecar of a service brings its first identity, so that the Cluster knows mutual TLS before an endpoint asks for it.
func differ(old, now *Service) (cluster, endpoints bool) {
	if old == nil || now == nil {
		return old != now, old != now
	}
	cluster = old.Protocol != now.Protocol ||
		!slices.Equal(old.Identities, now.Identities) ||
		!slices.Equal(old.Addresses, now.Addresses)
	return cluster, !slices.Equal(old.Endpoints, now.Endpoints)
}

func hasAddress(s *Service) bool { return s != nil && len(s.Addresses) > 0 }

func (b *meshBuild) proxies() {
	if b.addressesFlipped {
		b.in.addressed = nil
		for name, s := range b.now.Services {
			if hasAddress(s) {
				b.in.addressed = append(b.in.addressed, name)
			}
		}
		slices.Sort(b.in.addressed)
		for name, p := range b.in.proxies {
			if p.dataplane != nil && p.dataplane.Spec.Networking.TransparentProxying != nil {
				b.in.dirtyProxies[name] = struct{}{}
			}
		}
	}
	sights := &sights{mesh: b.in, redirected: map[string]*sight{}}
	for name := range b.in.dirtyProxies {
		b.proxy(name, sights)
	}
}

func (b *meshBuild) proxy(name string, sights *sights) {
	id := mesh.MakeID(b.name, name)
	in, old := b.in.proxies[name], b.old.Proxies[name]
	if in.dataplane == nil {
		b.in.look(in, nil)
		delete(b.in.proxies, name)
		if old != nil {
			b.ownProxyMap()
			delete(b.now.Proxies, name)
			b.change.Proxies = append(b.change.Proxies, id)
		}
		return
	}
	same, was := old != nil && sameButHealth(old.Dataplane, in.dataplane), in.sight
	if !same || b.addressesFlipped {
		b.in.look(in, sights.of(in))
	}
	now := &Proxy{Dataplane: in.dataplane, Sees: in.sight.names, Observed: b.state.observed[id]}
	switch {
	case !same, was != in.sight:
		b.change.Proxies = append(b.change.Proxies, id)
	case old.Observed == now.Observed && reflect.DeepEqual(old.Dataplane, now.Dataplane):
		return
	}
	b.ownProxyMap()
	b.now.Proxies[name] = now
}

func (b *meshBuild) ownProxyMap() {
	if !b.ownProxies {
		b.now.Proxies, b.ownProxies = clone(b.now.Proxies), true
	}
}

// clone never returns nil.
func clone[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// sameButHealth compares what a proxy's own resources are made of: the health of an inbound concerns its clients alone.
func sameButHealth(a, b *mesh.Dataplane) bool {
	return a == b || reflect.DeepEqual(withoutHealth(a), withoutHealth(b))
}

func withoutHealth(d *mesh.Dataplane) *mesh.Dataplane {
	c := *d
	c.Spec.Networking.Inbound = slices.Clone(d.Spec.Networking.Inbound)
	for i := range c.Spec.Networking.Inbound {
		c.Spec.Networking.Inbound[i].Health = nil
	}
	return &c
}
