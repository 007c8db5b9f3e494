// Package meshview turns objects into an immutable View of all meshes. One writer, the Builder, builds each View, and
// names what has changed since the previous one.
package meshview

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// View is an immutable snapshot of all meshes. Parts that did not change are shared with the view before.
type View struct {
	// Generation counts the views of this process, from 1.
	Generation uint64
	Meshes     map[string]*Mesh
	// ServicesChecked is copied from Options.
	ServicesChecked bool
}

// Mesh is one mesh of the view. If there is no Mesh object at all, there is one mesh named default, without mTLS.
type Mesh struct {
	Spec     *mesh.Mesh
	Services Map[Service]
	Proxies  Map[Proxy]
	// MeshServices are for display: their effect is in Services.
	MeshServices Map[MeshService]
}

// SameResources reports whether the Mesh objects of two views of a mesh give the same resources.
func (m *Mesh) SameResources(o *Mesh) bool {
	return m.Spec.Mode() == o.Spec.Mode() && m.Spec.Passthrough() == o.Spec.Passthrough()
}

// Service is what clients of a service need to know. The view also has services that only an outbound names, without
// endpoints: it has every name in Scope.Services.
type Service struct {
	Mesh string
	// Name is the kuma.io/service, or the name from a BackendRef, see mesh.Outbound.Service.
	Name     string
	Protocol mesh.Protocol
	// Addresses are the virtual addresses, sorted. A service without any is reached through outbounds of its clients.
	Addresses []netip.AddrPort
	// Identities are the SPIFFE IDs of all inbounds of the service, ready or not, sorted. Clients accept these.
	Identities []string
	// Headless services are reached at the addresses of their endpoints.
	Headless bool
	// Affinity means that the requests of a caller go to the same endpoint.
	Affinity bool
	// Local means that callers reach only the endpoints on their own node, see For.
	Local bool
	// Unknown means that only outbounds name the service.
	Unknown bool
	// Endpoints are all endpoints, ready or not, sorted by address.
	Endpoints []Endpoint
}

// ID is <mesh>/<name>.
func (s *Service) ID() mesh.ID { return mesh.MakeID(s.Mesh, s.Name) }

// Endpoint is one address of a service.
type Endpoint struct {
	Address netip.AddrPort
	Health  Health
	// Reason is as in InboundHealth.
	Reason Reason
	// Proxy is the name of the Dataplane of the endpoint, "" for an endpoint without a sidecar.
	Proxy string
	// Declared means that a Service object names it; otherwise it is an inbound of Proxy.
	Declared bool
	// Sidecar means that a proxy of the mesh answers: clients speak mTLS to it if the mesh has mTLS.
	Sidecar bool
	// Node is its node, empty if unknown.
	Node string
	// ServerFirst is as in mesh.Inbound.ServerFirst: in PERMISSIVE mode, clients still send plaintext to the endpoint.
	ServerFirst bool
}

// Listeners returns the addresses at which redirected applications reach the service: its virtual addresses, and the
// endpoints' addresses for a headless service.
func (s *Service) Listeners() []netip.AddrPort {
	if !s.Headless {
		return s.Addresses
	}
	all := slices.Clone(s.Addresses)
	for _, e := range s.Endpoints {
		all = append(all, e.Address)
	}
	return all
}

// Serving returns the endpoints that get traffic: the ready ones or, without any, the draining ones. For a
// headless service it returns all, since clients call each by its address.
func (s *Service) Serving() []Endpoint {
	if s.Headless {
		return s.Endpoints
	}
	want := servingHealth(s.Endpoints)
	var serving []Endpoint
	for _, e := range s.Endpoints {
		if e.Health == want {
			serving = append(serving, e)
		}
	}
	return serving
}

// servingHealth returns the health of the endpoints that get traffic.
func servingHealth(endpoints []Endpoint) Health {
	if slices.ContainsFunc(endpoints, func(e Endpoint) bool { return e.Health == Ready }) {
		return Ready
	}
	return Draining
}

// GetTraffic returns, for each of Endpoints by index, whether it gets traffic; for a Local service, whether callers on
// its own node reach it.
func (s *Service) GetTraffic() []bool {
	groups := map[string][]Endpoint{"": s.Endpoints}
	if s.Local {
		groups = s.ByNode()
	}
	want := make(map[string]Health, len(groups))
	for node, group := range groups {
		want[node] = servingHealth(group)
	}
	all := make([]bool, len(s.Endpoints))
	for i := range s.Endpoints {
		e, node := &s.Endpoints[i], ""
		if s.Local {
			node = e.Node
		}
		serving, reached := want[node]
		all[i] = reached && (s.Headless || e.Health == serving)
	}
	return all
}

// For returns the service as callers on a node see it: a Local service has only the endpoints on that node, and none
// for an empty node. Any other service is returned unchanged.
func (s *Service) For(node string) *Service {
	if !s.Local {
		return s
	}
	var on []Endpoint
	for _, e := range s.Endpoints {
		if e.Node == node && node != "" {
			on = append(on, e)
		}
	}
	return s.With(on)
}

// ByNode returns the endpoints of all nodes, each as For returns them.
func (s *Service) ByNode() map[string][]Endpoint {
	byNode := map[string][]Endpoint{}
	for _, e := range s.Endpoints {
		if e.Node != "" {
			byNode[e.Node] = append(byNode[e.Node], e)
		}
	}
	return byNode
}

// With returns a copy of the service with other endpoints.
func (s *Service) With(endpoints []Endpoint) *Service {
	other := *s
	other.Endpoints = endpoints
	return &other
}

// Proxy is one Dataplane and what it can reach.
type Proxy struct {
	Dataplane *mesh.Dataplane
	// Scope is what it can reach. Proxies that can reach the same have the same pointer.
	Scope *Scope
	// Observed is what agents and Envoys have reported about it.
	Observed mesh.Observation
	// Inbounds is the health of each inbound of the Dataplane, in order.
	Inbounds []InboundHealth
}

// Drain returns why the proxy should get no new traffic, nil if it should.
func (p *Proxy) Drain() *mesh.Drain {
	if p.Dataplane.Drain == nil && p.Observed.Administrator != "" {
		return &mesh.Drain{Administrator: p.Observed.Administrator}
	}
	return p.Dataplane.Drain
}

// ID is <mesh>/<name>.
func (p *Proxy) ID() mesh.ID { return p.Dataplane.ID() }

// MeshService is a mesh.MeshService with the Dataplanes that it selects.
type MeshService struct {
	Object *mesh.MeshService
	// Dataplanes are the names of the selected Dataplanes, sorted.
	Dataplanes []string
}

// Change lists the differences between two views. All lists are sorted.
//
//   - Services: the Cluster (protocol, identities, affinity), which callers reach which endpoints (Local), the route or
//     an address to listen on changed, or the service was added or removed.
//   - Endpoints: an endpoint or its health changed, or whether the service is headless or Local, or the service was
//     added or removed. The reason for its health, its owner, and whether the service is unknown, do not count, because
//     they are only shown.
//   - Proxies: the proxy was added or removed, its Scope changed, or its Dataplane in more than the health of an
//     inbound.
//   - Observed: the proxy existed before, and its observed state, the health of an inbound or the reason for that
//     health changed. This is only for its agent: the proxy's resources stay the same.
//   - Unknown: the service became unknown or known. This is only shown, too: no proxy's resources change.
//
// MeshServices are not listed, only their effects.
//
// If the mTLS mode of a mesh or its passthrough changes, all services and all proxies of that mesh are listed.
type Change struct {
	Before, After                                   *View
	Services, Endpoints, Proxies, Observed, Unknown []mesh.ID
}

// Mesh returns the named mesh, nil if it does not exist.
func (v *View) Mesh(name string) *Mesh {
	if v == nil {
		return nil
	}
	return v.Meshes[name]
}

// Proxy returns the proxy with an ID and its mesh; nil, nil if it does not exist.
func (v *View) Proxy(id mesh.ID) (*Mesh, *Proxy) {
	meshName, name := mesh.SplitID(id)
	if m := v.Mesh(meshName); m != nil {
		if p := m.Proxies.Get(name); p != nil {
			return m, p
		}
	}
	return nil, nil
}

// Dataplane returns the Dataplane of a proxy, nil if it does not exist.
func (v *View) Dataplane(id mesh.ID) *mesh.Dataplane {
	_, p := v.Proxy(id)
	if p == nil {
		return nil
	}
	return p.Dataplane
}

// Instances returns the proxies of a mesh, each name with the instance of its Dataplane, and false without a view.
func (v *View) Instances(meshName string) (proxies iter.Seq2[string, string], known bool) {
	if v == nil {
		return nil, false
	}
	return func(yield func(string, string) bool) {
		m := v.Mesh(meshName)
		if m == nil {
			return
		}
		for name, p := range m.Proxies.All() {
			if !yield(name, p.Dataplane.Identity.Instance) {
				return
			}
		}
	}, true
}

// Service returns the service with an ID and its mesh; nil, nil if it does not exist.
func (v *View) Service(id mesh.ID) (*Mesh, *Service) {
	meshName, name := mesh.SplitID(id)
	if m := v.Mesh(meshName); m != nil {
		if s := m.Services.Get(name); s != nil {
			return m, s
		}
	}
	return nil, nil
}
