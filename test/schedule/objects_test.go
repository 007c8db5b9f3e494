package schedule

import (
	"fmt"
	"math/rand/v2"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// There are so few names that most objects refer to each other.
const (
	proxies      = 3 // of each mesh
	ports        = 3 // of each proxy
	services     = 3 // of each mesh
	firstService = 'a'
)

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func proxyName(r *rand.Rand) string   { return fmt.Sprint("dp-", r.IntN(proxies)) }
func serviceName(r *rand.Rand) string { return string(firstService + rune(r.IntN(services))) }

// meshOf makes a Mesh with that mode; "" means no mTLS.
func meshOf(name string, mode mesh.MTLSMode) *mesh.Mesh {
	m := &mesh.Mesh{Name: name}
	if mode != "" {
		m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
	}
	return m
}

func anyMode(r *rand.Rand) mesh.MTLSMode { return pick(r, "", mesh.ModeStrict, mesh.ModePermissive) }

func anyService(r *rand.Rand, meshName, name string) *mesh.Service {
	s := &mesh.Service{Meta: mesh.Meta{Mesh: meshName, Name: name}}
	s.Spec.Protocol = pick(r, "", "", mesh.ProtocolHTTP, mesh.ProtocolGRPC)
	for i := range r.IntN(3) {
		s.Spec.Addresses = append(s.Spec.Addresses, fmt.Sprintf("240.0.%d.%d:80", i, r.IntN(3)))
	}
	for i := range r.IntN(2) {
		s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: fmt.Sprintf("10.9.%d.%d", i, r.IntN(5)), Port: 80})
	}
	return s
}

// anyDataplane has at least one inbound: a known proxy always has something.
func anyDataplane(r *rand.Rand, meshName, name string) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshName, Name: name}}
	n := &d.Spec.Networking
	n.Address = fmt.Sprint("10.0.0.", 1+r.IntN(5))
	for _, port := range r.Perm(ports)[:1+r.IntN(2)] {
		n.Inbound = append(n.Inbound, mesh.Inbound{
			Port: uint32(80 + port), ServerFirst: r.IntN(8) == 0,
			Tags: mesh.Tags{mesh.TagService: serviceName(r), mesh.TagProtocol: string(pick(r, mesh.ProtocolTCP, mesh.ProtocolHTTP))},
		})
		if r.IntN(4) == 0 {
			n.Inbound[len(n.Inbound)-1].Health = &mesh.Health{Ready: new(bool)}
		}
	}
	for i := range r.IntN(3) {
		n.Outbound = append(n.Outbound, mesh.Outbound{Port: uint32(10001 + i), Tags: mesh.Tags{mesh.TagService: serviceName(r)}})
	}
	if r.IntN(4) == 0 {
		n.TransparentProxying = &mesh.TransparentProxying{}
	}
	if r.IntN(3) == 0 {
		d.Labels = map[string]string{mesh.LabelWorkload: serviceName(r)}
	}
	return d
}
