package meshview

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// buildService returns nil for a service without a Service object, inbounds and clients. One that has only clients is in
// the view without endpoints: their Envoys then have a cluster for it and answer 503, instead of waiting for an
// assignment that never comes.
func (s *state) buildService(meshName, name string, in *serviceInput) *Service {
	if in.object == nil && len(in.inbounds) == 0 && in.clients == 0 {
		return nil
	}
	svc := &Service{Mesh: meshName, Name: name}
	endpoints := map[netip.AddrPort]Endpoint{}
	if in.object != nil {
		svc.Addresses, svc.Headless = virtualAddresses(in.object), in.object.Spec.Headless
		for i := range in.object.Spec.Endpoints {
			e, identity := s.objectEndpoint(meshName, &in.object.Spec.Endpoints[i])
			if e.Address.IsValid() {
				merge(endpoints, e)
			}
			if identity != "" {
				svc.Identities = append(svc.Identities, identity)
			}
		}
	}
	var protocols []mesh.Protocol
	for _, d := range in.inbounds {
		if id := d.SPIFFEID(s.trustDomain); id != "" {
			svc.Identities = append(svc.Identities, id)
		}
		for i := range d.Spec.Networking.Inbound {
			inbound := &d.Spec.Networking.Inbound[i]
			if inbound.Tags.Service() != name {
				continue
			}
			protocols = append(protocols, inbound.Tags.Protocol())
			if at := d.InboundAddress(inbound); at.IsValid() {
				h := s.inboundHealth(d, inbound)
				merge(endpoints, Endpoint{
					Address:     at,
					Health:      h.Health,
					Reason:      h.Reason,
					Proxy:       d.Name,
					Sidecar:     true,
					ServerFirst: inbound.ServerFirst,
				})
			}
		}
	}
	slices.Sort(svc.Identities)
	svc.Identities = slices.Compact(svc.Identities)
	svc.Protocol = protocolOf(in.object, protocols)
	svc.Endpoints = slices.SortedFunc(maps.Values(endpoints), func(a, b Endpoint) int { return a.Address.Compare(b.Address) })
	return svc
}

// objectEndpoint returns an endpoint of a Service object, and the SPIFFE ID of its proxy if it has one.
func (s *state) objectEndpoint(meshName string, o *mesh.ServiceEndpoint) (e Endpoint, identity string) {
	h := endpointHealth(o.Health)
	e = Endpoint{Address: mesh.AddrPort(o.Address, o.Port), Health: h.Health, Reason: h.Reason, Proxy: o.Dataplane, Declared: true}
	if o.Dataplane == "" {
		return e, ""
	}
	p := s.meshes[meshName].proxies[o.Dataplane]
	if p == nil || p.dataplane == nil {
		e.Health, e.Reason = NotReady, UnknownDataplane // whether it takes plain text is not known
		return e, ""
	}
	e.Sidecar = true
	for i := range p.dataplane.Spec.Networking.Inbound {
		if in := &p.dataplane.Spec.Networking.Inbound[i]; in.Port == o.Port {
			e.ServerFirst = e.ServerFirst || in.ServerFirst
		}
	}
	return e, p.dataplane.SPIFFEID(s.trustDomain)
}

// merge adds an endpoint. If two have the same address, the one with a sidecar wins, since a plain connection to it may
// be refused; else the healthier one, since the former owner of an address stays behind as not ready; else the one with
// ServerFirst; else the first by name, so that the order of the inbounds never matters.
func merge(endpoints map[netip.AddrPort]Endpoint, e Endpoint) {
	if old, ok := endpoints[e.Address]; !ok || precedes(e, old) {
		endpoints[e.Address] = e
	}
}

func precedes(a, b Endpoint) bool {
	switch {
	case a.Sidecar != b.Sidecar:
		return a.Sidecar
	case a.Health != b.Health:
		return a.Health > b.Health
	case a.ServerFirst != b.ServerFirst:
		return a.ServerFirst
	case a.Proxy != b.Proxy:
		return a.Proxy < b.Proxy
	default:
		return a.Reason < b.Reason
	}
}

// protocolOf returns the protocol of the Service object, else that of the inbounds.
func protocolOf(o *mesh.Service, inbounds []mesh.Protocol) mesh.Protocol {
	if o != nil && o.Spec.Protocol != "" {
		return o.Spec.Protocol
	}
	return mesh.CommonProtocol(inbounds)
}

func virtualAddresses(o *mesh.Service) []netip.AddrPort {
	var addresses []netip.AddrPort
	for _, a := range o.Spec.Addresses {
		if at, err := netip.ParseAddrPort(a); err == nil {
			addresses = append(addresses, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
		}
	}
	slices.SortFunc(addresses, netip.AddrPort.Compare)
	return slices.Compact(addresses)
}
