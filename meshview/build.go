package meshview

import (
	"maps"
	"reflect"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// next builds the view that follows before, from the input that has changed since. It returns false if nothing differs.
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
		// new maps, since clearing a map costs as much as its largest size before
		in.dirtyServices, in.dirtyProxies, in.dirtyMeshServices = map[string]struct{}{}, map[string]struct{}{},
			map[string]struct{}{}
		if in.spec == nil && len(in.proxies) == 0 && len(in.services) == 0 && len(in.byName) == 0 {
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
	change.After = &View{Generation: 1, Meshes: meshes, ServicesChecked: s.checked}
	if before != nil {
		change.After.Generation = before.Generation + 1
	}
	for _, ids := range []*[]mesh.ID{&change.Services, &change.Endpoints, &change.Proxies, &change.Observed,
		&change.Unknown} {
		slices.Sort(*ids)
		*ids = slices.Compact(*ids)
	}
	return change, true
}

// buildMesh returns old itself if nothing differs, and nil if the mesh does not exist.
func (s *state) buildMesh(name string, in *meshInput, old *Mesh, c *Change) *Mesh {
	b := &meshBuild{state: s, name: name, in: in, change: c, old: old}
	switch {
	case in.spec == nil:
		b.removeMesh()
		return nil
	case old == nil:
		b.old = &Mesh{}
		b.markAllDirty()
	}
	b.now = Mesh{Spec: in.spec, Services: b.old.Services, Proxies: b.old.Proxies, MeshServices: b.old.MeshServices}
	b.buildMeshServices()
	b.buildServices()
	b.buildProxies()
	if old != nil && !old.SameResources(&b.now) {
		b.changeAll()
	}
	if old != nil && old.Services == b.now.Services && old.Proxies == b.now.Proxies &&
		old.MeshServices == b.now.MeshServices && reflect.DeepEqual(old.Spec, in.spec) {
		return old
	}
	now := b.now // a pointer into b would keep old alive, and through it every earlier view
	return &now
}

// meshBuild builds one mesh of one view.
type meshBuild struct {
	state  *state
	name   string
	in     *meshInput
	change *Change
	old    *Mesh
	now    Mesh
	// addressesFlipped means that a service got its first virtual address, or lost its last one.
	addressesFlipped bool
}

// markAllDirty marks every service and proxy of a mesh that is new in the view.
func (b *meshBuild) markAllDirty() {
	for name := range b.in.services {
		b.in.dirtyServices[name] = struct{}{}
	}
	for name := range b.in.proxies {
		b.in.dirtyProxies[name] = struct{}{}
	}
	for name := range b.in.byName {
		b.in.dirtyMeshServices[name] = struct{}{}
	}
}

// removeMesh removes the mesh from the view. Its input stays, in case the mesh is created again.
func (b *meshBuild) removeMesh() {
	for name := range b.in.dirtyServices {
		b.prune(name)
	}
	for name, p := range b.in.proxies {
		b.in.setScope(p, nil)
		if p.dataplane == nil {
			delete(b.in.proxies, name)
		}
	}
	b.in.addressed = nil
	if b.old == nil {
		return
	}
	b.now = *b.old
	b.changeAll()
	for name, s := range b.old.Services.All() {
		b.change.Endpoints = append(b.change.Endpoints, mesh.MakeID(b.name, name))
		if s.Unknown {
			b.change.Unknown = append(b.change.Unknown, s.ID())
		}
	}
}

// changeAll lists every service and proxy of the mesh in the change.
func (b *meshBuild) changeAll() {
	for name := range b.now.Services.All() {
		b.change.Services = append(b.change.Services, mesh.MakeID(b.name, name))
	}
	for name := range b.now.Proxies.All() {
		b.change.Proxies = append(b.change.Proxies, mesh.MakeID(b.name, name))
	}
}

// prune drops the input of a service that nothing refers to.
func (b *meshBuild) prune(name string) {
	in := b.in.services[name]
	if in.unused() {
		delete(b.in.services, name)
	}
	if in.clients == 0 {
		delete(b.in.references, name)
	}
}

func (b *meshBuild) buildMeshServices() {
	for name := range b.in.dirtyMeshServices {
		old, in := b.old.MeshServices.Get(name), b.in.byName[name]
		switch {
		case in != nil:
			now := &MeshService{Object: in.object, Dataplanes: slices.Sorted(maps.Keys(in.dataplanes))}
			if !reflect.DeepEqual(old, now) {
				b.now.MeshServices = b.now.MeshServices.With(name, now)
			}
		case old != nil:
			b.now.MeshServices = b.now.MeshServices.With(name, nil)
		}
	}
}

func (b *meshBuild) buildServices() {
	for name := range b.in.dirtyServices {
		old, now := b.old.Services.Get(name), b.state.buildService(b.name, name, b.in.services[name])
		b.prune(name)
		cluster, endpoints := diffService(old, now)
		if !cluster && !endpoints && (old == nil || slices.Equal(old.Endpoints, now.Endpoints) &&
			old.Unknown == now.Unknown) {
			continue
		}
		id := mesh.MakeID(b.name, name)
		if cluster {
			b.change.Services = append(b.change.Services, id)
		}
		if endpoints {
			b.change.Endpoints = append(b.change.Endpoints, id)
		}
		if isUnknown(old) != isUnknown(now) {
			b.change.Unknown = append(b.change.Unknown, id)
		}
		b.addressesFlipped = b.addressesFlipped || hasAddress(old) != hasAddress(now)
		b.now.Services = b.now.Services.With(name, now)
	}
}

// diffService reports whether the inputs of the Cluster, the route or the listeners differ, and whether the endpoints
// do. The first endpoint with a sidecar adds the first identity, so the Cluster has mTLS before an endpoint needs it.
func diffService(old, now *Service) (cluster, endpoints bool) {
	if old == nil || now == nil {
		return old != now, old != now
	}
	cluster = old.Protocol != now.Protocol ||
		old.Headless != now.Headless ||
		old.Affinity != now.Affinity ||
		old.Local != now.Local ||
		!slices.Equal(old.Identities, now.Identities) ||
		!slices.Equal(old.Listeners(), now.Listeners())
	return cluster, old.Headless != now.Headless || old.Local != now.Local ||
		!slices.EqualFunc(old.Endpoints, now.Endpoints, equalForClients)
}

// equalForClients compares what the endpoint assignments of clients depend on.
func equalForClients(a, b Endpoint) bool {
	a.Reason, a.Proxy, a.Declared = b.Reason, b.Proxy, b.Declared
	return a == b
}

func hasAddress(s *Service) bool { return s != nil && (s.Headless || len(s.Addresses) > 0) }

func (b *meshBuild) buildProxies() {
	if b.addressesFlipped {
		b.in.addressed = nil
		for name, s := range b.now.Services.All() {
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
	found := &scopes{mesh: b.in, redirected: map[scopeKey]*sharedScope{}}
	for name := range b.in.dirtyProxies {
		b.buildProxy(name, found)
	}
}

func (b *meshBuild) buildProxy(name string, found *scopes) {
	id := mesh.MakeID(b.name, name)
	in, old := b.in.proxies[name], b.old.Proxies.Get(name)
	if in.dataplane == nil {
		b.in.setScope(in, nil)
		delete(b.in.proxies, name)
		if old != nil {
			b.now.Proxies = b.now.Proxies.With(name, nil)
			b.change.Proxies = append(b.change.Proxies, id)
		}
		return
	}
	same, was := old != nil && equalExceptHealth(old.Dataplane, in.dataplane), in.scope
	if !same || b.addressesFlipped {
		b.in.setScope(in, found.of(in))
	}
	now := &Proxy{Dataplane: in.dataplane, Scope: &in.scope.Scope, Observed: b.state.observed[id]}
	now.Inbounds = b.state.inboundHealths(in.dataplane)
	if old != nil && (old.Observed != now.Observed || !slices.Equal(old.Inbounds, now.Inbounds)) {
		b.change.Observed = append(b.change.Observed, id)
	}
	switch {
	case !same, was != in.scope:
		b.change.Proxies = append(b.change.Proxies, id)
	case old.Observed == now.Observed && reflect.DeepEqual(old.Dataplane, now.Dataplane):
		return
	}
	b.now.Proxies = b.now.Proxies.With(name, now)
}

// equalExceptHealth compares what a proxy's own resources depend on: the health of an inbound only matters to clients.
func equalExceptHealth(a, b *mesh.Dataplane) bool {
	return a == b || reflect.DeepEqual(withoutHealth(a), withoutHealth(b))
}

func withoutHealth(d *mesh.Dataplane) *mesh.Dataplane {
	c := *d
	c.Spec.Networking.Inbound = slices.Clone(d.Spec.Networking.Inbound)
	for i := range c.Spec.Networking.Inbound {
		in := &c.Spec.Networking.Inbound[i]
		in.Health = nil
		if in.State != mesh.InboundIgnored {
			in.State = ""
		}
	}
	return &c
}
