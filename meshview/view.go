// Package meshview holds the mesh as one immutable picture, made by one writer, and names what changed in it.
package meshview

import (
	"net/netip"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// View is the whole picture. It and all below it never change after they are built; parts that did not change are
// shared with the view before.
type View struct {
	// Generation counts the views of this process, from 1.
	Generation uint64
	Meshes     map[string]*Mesh
}

// Mesh is one mesh of the view. Where the store has no Mesh at all, there is one named default without mTLS.
type Mesh struct {
	Spec     *mesh.Mesh
	Services map[string]*Service
	Proxies  map[string]*Proxy
}

// Service is what a client of the service needs to know. One that is only named by an outbound is in the view too,
// without endpoints, so that whatever a proxy sees is there.
type Service struct {
	Mesh string
	// Name is the kuma.io/service.
	Name     string
	Protocol mesh.Protocol
	// Addresses are virtual; empty where clients reach the service by an outbound of their own. Sorted.
	Addresses []netip.AddrPort
	// Identities are the SPIFFE IDs that may answer: those of all inbounds of the service, ready or not. Sorted.
	Identities []string
	// Endpoints, all of them, ready or not. Sorted by address.
	Endpoints []Endpoint
}

// ID is <mesh>/<name>.
func (s *Service) ID() mesh.ID { return mesh.MakeID(s.Mesh, s.Name) }

// Endpoint is one address of a service.
type Endpoint struct {
	Address netip.AddrPort
	Health  Health
	// Sidecar says that a proxy of the mesh answers: speak mutual TLS where the mesh has it.
	Sidecar bool
	// ServerFirst is that of the inbound: where the mode is PERMISSIVE, speak plain text to it all the same.
	ServerFirst bool
}

// Health says whether an endpoint may get traffic.
type Health uint8

// Ready endpoints get traffic. Draining ones still serve, and get traffic while the service has no ready one, as in
// kube-proxy. NotReady ones get none.
const (
	NotReady Health = iota
	Draining
	Ready
)

// Serving returns the endpoints that get traffic: the ready ones, or if there is none the draining ones.
func (s *Service) Serving() []Endpoint {
	for _, want := range []Health{Ready, Draining} {
		var serving []Endpoint
		for _, e := range s.Endpoints {
			if e.Health == want {
				serving = append(serving, e)
			}
		}
		if len(serving) > 0 {
			return serving
		}
	}
	return nil
}

// Proxy is one Dataplane and what it can reach.
type Proxy struct {
	Dataplane *mesh.Dataplane
	// Sees are the names of the services that it has clusters for: those of its outbounds, and with
	// transparentProxying all that have an address. Sorted. Proxies that see the same share one slice.
	Sees []string
	// Observed is what its agent says.
	Observed mesh.Observation
}

// ID is <mesh>/<name>.
func (p *Proxy) ID() mesh.ID { return p.Dataplane.ID() }

// Change names what differs between two views. An endpoint that turns unready is in Endpoints alone; what changes a
// Cluster (protocol, identities), a route or a virtual address is in Services; a service that comes or goes is in both.
// A proxy is in Proxies if it came, went, or its Sees changed, or its Dataplane in more than the health of an inbound.
// A changed mTLS mode lists every service and every proxy of its mesh. All sorted.
type Change struct {
	Before, After                *View
	Services, Endpoints, Proxies []mesh.ID
}

// Mesh returns the named mesh, nil if there is none.
func (v *View) Mesh(name string) *Mesh {
	if v == nil {
		return nil
	}
	return v.Meshes[name]
}

// Proxy returns the proxy of that ID, with its mesh; nil, nil if there is none.
func (v *View) Proxy(id mesh.ID) (*Mesh, *Proxy) {
	meshName, name := mesh.SplitID(id)
	if m := v.Mesh(meshName); m != nil && m.Proxies[name] != nil {
		return m, m.Proxies[name]
	}
	return nil, nil
}

// Service returns the service of that ID, with its mesh; nil, nil if there is none.
func (v *View) Service(id mesh.ID) (*Mesh, *Service) {
	meshName, name := mesh.SplitID(id)
	if m := v.Mesh(meshName); m != nil && m.Services[name] != nil {
		return m, m.Services[name]
	}
	return nil, nil
}
