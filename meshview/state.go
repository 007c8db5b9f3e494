package meshview

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// state is all input, indexed so that the cost of a view is proportional to what changed. It is for one goroutine at a
// time.
type state struct {
	trustDomain string
	requireJoin bool
	explicit    bool                 // Options.ExplicitMeshes
	checked     bool                 // Options.ServicesChecked
	objects     map[mesh.Key][]claim // one claim per source, the one in use first
	observed    map[mesh.ID]mesh.Observation
	meshes      map[string]*meshInput
	meshObjects int // Mesh objects
	dirty       map[string]struct{}
}

// claim is the version of an object that one source has.
type claim struct {
	source string
	rank   int
	object mesh.Object
}

// meshInput is the input of one mesh, whether or not the mesh exists, and which parts must be built again.
type meshInput struct {
	spec     *mesh.Mesh // nil if the mesh does not exist, so that it is not in the view
	proxies  map[string]*proxyInput
	services map[string]*serviceInput
	// named has, by Dataplane, the services whose Service objects have an endpoint with that Dataplane, which need not
	// exist.
	named map[string]map[string]struct{}

	meshServices
	addressed []string // services of the view that have a virtual address, sorted
	scopes    map[scopeKey]*sharedScope

	dirtyServices, dirtyProxies map[string]struct{}
}

type proxyInput struct {
	dataplane *mesh.Dataplane
	uses      []string     // services of its outbounds, sorted
	scope     *sharedScope // nil if it is not in the view yet
}

type serviceInput struct {
	object   *mesh.Service
	inbounds map[string]*mesh.Dataplane // Dataplanes with an inbound of the service, by name
	port     *portInput                 // the port of a MeshService to which this service corresponds, nil without one
	clients  int                        // Dataplanes with an outbound to it
}

// unused reports whether nothing refers to the service.
func (s *serviceInput) unused() bool {
	return s.object == nil && len(s.inbounds) == 0 && s.port == nil && s.clients == 0
}

func newState(o Options) *state {
	s := &state{
		trustDomain: o.TrustDomain,
		requireJoin: o.RequireJoin,
		explicit:    o.ExplicitMeshes,
		checked:     o.ServicesChecked,
		objects:     map[mesh.Key][]claim{},
		observed:    map[mesh.ID]mesh.Observation{},
		meshes:      map[string]*meshInput{},
		dirty:       map[string]struct{}{},
	}
	s.implyDefault()
	return s
}

// put records an object of a source; a nil object means that the source no longer has it.
func (s *state) put(c claim, key mesh.Key) {
	before := s.objects[key]
	claims := slices.DeleteFunc(slices.Clone(before), func(o claim) bool { return o.source == c.source })
	if c.object != nil {
		claims = append(claims, c)
		slices.SortFunc(claims, claim.compare)
	}
	if len(claims) == 0 {
		delete(s.objects, key)
	} else {
		s.objects[key] = claims
	}
	was, now := effective(before), effective(claims)
	if reflect.DeepEqual(was, now) {
		return
	}
	switch key.Kind {
	case mesh.KindMesh:
		s.setMesh(key.Name, as[*mesh.Mesh](was), as[*mesh.Mesh](now))
	case mesh.KindDataplane:
		s.setDataplane(key, as[*mesh.Dataplane](was), as[*mesh.Dataplane](now))
	case mesh.KindService:
		s.setService(key, as[*mesh.Service](was), as[*mesh.Service](now))
	case mesh.KindMeshService:
		s.touch(key.Mesh).setMeshService(key.Name, as[*mesh.MeshService](now))
	}
}

// compare orders claims, the one in use first. Any Mesh precedes a mesh that is Recorded.
func (c claim) compare(o claim) int {
	recorded := func(c claim) int {
		if m, ok := c.object.(*mesh.Mesh); ok && m.Recorded {
			return 1
		}
		return 0
	}
	return cmp.Or(recorded(c)-recorded(o), c.rank-o.rank, strings.Compare(c.source, o.source))
}

func effective(claims []claim) mesh.Object {
	if len(claims) == 0 {
		return nil
	}
	return claims[0].object
}

// as converts o to T; nil becomes a nil pointer.
func as[T mesh.Object](o mesh.Object) T {
	t, _ := o.(T)
	return t
}

func (s *state) setMesh(name string, was, now *mesh.Mesh) {
	if isWritten(was) {
		s.meshObjects--
	}
	if isWritten(now) {
		s.meshObjects++
	}
	s.touch(name).spec = now
	s.implyDefault()
}

// isWritten reports whether m is a Mesh object, and not Recorded.
func isWritten(m *mesh.Mesh) bool { return m != nil && !m.Recorded }

// implyDefault adds a mesh named default, without mTLS, while there is no Mesh at all.
func (s *state) implyDefault() {
	if s.explicit {
		return
	}
	_, real := s.objects[(&mesh.Mesh{Name: mesh.DefaultMesh}).Key()]
	if real {
		return
	}
	m := s.touch(mesh.DefaultMesh)
	switch {
	case s.meshObjects > 0:
		m.spec = nil
	case m.spec == nil:
		m.spec = mesh.ImpliedMesh(mesh.DefaultMesh)
	}
}

func (s *state) setDataplane(key mesh.Key, was, now *mesh.Dataplane) {
	m := s.touch(key.Mesh)
	p := m.proxies[key.Name]
	if p == nil {
		p = &proxyInput{}
		m.proxies[key.Name] = p
	}
	for _, name := range inboundServices(was) {
		delete(m.service(name).inbounds, key.Name)
	}
	for _, name := range inboundServices(now) {
		m.service(name).inbounds[key.Name] = now
	}
	for name := range m.named[key.Name] {
		m.dirtyServices[name] = struct{}{}
	}
	m.selectDataplane(key.Name, now)
	var uses []string
	if now != nil {
		uses = outboundServices(now)
		m.addReferences(now)
	}
	if !slices.Equal(p.uses, uses) {
		for _, name := range p.uses {
			m.service(name).clients--
		}
		for _, name := range uses {
			m.service(name).clients++
		}
	}
	p.dataplane, p.uses = now, uses
	m.dirtyProxies[key.Name] = struct{}{}
}

// inboundServices returns the services of the inbounds, none for nil. An inbound need not belong to a service: on
// Kubernetes, Services name their endpoints.
func inboundServices(d *mesh.Dataplane) []string {
	if d == nil {
		return nil
	}
	var names []string
	for _, in := range d.Spec.Networking.Inbound {
		if name := in.Tags.Service(); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// outboundServices returns the services of the outbounds, sorted and without duplicates.
func outboundServices(d *mesh.Dataplane) []string {
	var names []string
	for _, out := range d.Spec.Networking.Outbound {
		names = append(names, out.Service())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (s *state) setService(key mesh.Key, was, now *mesh.Service) {
	m := s.touch(key.Mesh)
	m.service(key.Name).object = now
	before, after := namedDataplanes(was), namedDataplanes(now)
	if slices.Equal(before, after) {
		return // usually only the health of an endpoint differs
	}
	for _, dataplane := range before {
		delete(m.named[dataplane], key.Name)
		if len(m.named[dataplane]) == 0 {
			delete(m.named, dataplane)
		}
	}
	for _, dataplane := range after {
		if m.named[dataplane] == nil {
			m.named[dataplane] = map[string]struct{}{}
		}
		m.named[dataplane][key.Name] = struct{}{}
	}
}

// namedDataplanes returns the Dataplanes that the endpoints name, none for nil.
func namedDataplanes(s *mesh.Service) []string {
	if s == nil {
		return nil
	}
	var names []string
	for i := range s.Spec.Endpoints {
		if name := s.Spec.Endpoints[i].Dataplane; name != "" {
			names = append(names, name)
		}
	}
	return names
}

func (s *state) observe(id mesh.ID, o mesh.Observation) {
	was := s.observed[id]
	if was == o {
		return
	}
	meshName, name := mesh.SplitID(id)
	var d *mesh.Dataplane
	if m := s.meshes[meshName]; m != nil && m.proxies[name] != nil {
		d = m.proxies[name].dataplane
	}
	var before []InboundHealth
	if d != nil {
		before = s.inboundHealths(d)
	}
	if o == (mesh.Observation{}) {
		delete(s.observed, id)
	} else {
		s.observed[id] = o
	}
	if d == nil {
		return // it matters once the Dataplane exists
	}
	m := s.touch(meshName)
	m.dirtyProxies[name] = struct{}{}
	if was.Held != o.Held { // the only observation that affects endpoints of Service objects
		for service := range m.named[name] {
			m.dirtyServices[service] = struct{}{}
		}
	}
	for i, now := range s.inboundHealths(d) {
		if now == before[i] {
			continue
		}
		in := &d.Spec.Networking.Inbound[i]
		if service := in.Tags.Service(); service != "" {
			m.service(service) // marks it dirty
		}
		m.touchSelecting(name, in)
	}
}

// touch returns the input of a mesh for a change, and marks it dirty.
func (s *state) touch(name string) *meshInput {
	m := s.meshes[name]
	if m == nil {
		m = &meshInput{
			proxies:       map[string]*proxyInput{},
			services:      map[string]*serviceInput{},
			named:         map[string]map[string]struct{}{},
			meshServices:  newMeshServices(),
			scopes:        map[scopeKey]*sharedScope{},
			dirtyServices: map[string]struct{}{},
			dirtyProxies:  map[string]struct{}{},
		}
		s.meshes[name] = m
	}
	s.dirty[name] = struct{}{}
	return m
}

// service returns the input of a service for a change, and marks it dirty.
func (m *meshInput) service(name string) *serviceInput {
	s := m.services[name]
	if s == nil {
		s = &serviceInput{inbounds: map[string]*mesh.Dataplane{}}
		m.services[name] = s
	}
	m.dirtyServices[name] = struct{}{}
	return s
}
