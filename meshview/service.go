package meshview

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// buildService returns nil for a service that nothing refers to. A service that only has clients is in the view without
// endpoints: then their Envoys have a cluster for it and answer 503, instead of waiting for an assignment that never
// comes.
func (s *state) buildService(meshName, name string, in *serviceInput) *Service {
	if in.unused() {
		return nil
	}
	b := &serviceBuild{state: s, service: &Service{Mesh: meshName, Name: name}, endpoints: map[netip.AddrPort]Endpoint{}}
	if in.object != nil {
		b.addObject(in.object)
	}
	for _, d := range in.inbounds {
		b.addInbounds(d, func(i *mesh.Inbound) bool { return i.Tags.Service() == name })
	}
	port := cmp.Or(in.port, s.meshes[meshName].referenced(name))
	b.service.Unknown = in.object == nil && len(in.inbounds) == 0 && port == nil
	if port != nil {
		for _, d := range port.of.dataplanes {
			b.addInbounds(d, port.Selects)
		}
	}
	svc := b.service
	slices.Sort(svc.Identities)
	svc.Identities = slices.Compact(svc.Identities)
	svc.Protocol = protocolOf(in.object, port, b.protocols)
	svc.Endpoints = slices.SortedFunc(maps.Values(b.endpoints),
		func(a, b Endpoint) int { return a.Address.Compare(b.Address) })
	return svc
}

// serviceBuild gathers the parts of a service of the view.
type serviceBuild struct {
	state     *state
	service   *Service
	endpoints map[netip.AddrPort]Endpoint
	protocols []mesh.Protocol
}

func (b *serviceBuild) addObject(o *mesh.Service) {
	b.service.Addresses, b.service.Headless = virtualAddresses(o), o.Spec.Headless
	b.service.Affinity = o.Spec.SessionAffinity == mesh.AffinityClientIP
	b.service.Local = o.Spec.InternalTrafficPolicy == mesh.TrafficLocal
	for i := range o.Spec.Endpoints {
		e, identity := b.state.objectEndpoint(b.service.Mesh, &o.Spec.Endpoints[i])
		if e.Address.IsValid() {
			merge(b.endpoints, e)
		}
		if identity != "" {
			b.service.Identities = append(b.service.Identities, identity)
		}
	}
}

// addInbounds adds the inbounds of a Dataplane that belong to the service. Of an Ignored inbound, it only adds the
// identity.
func (b *serviceBuild) addInbounds(d *mesh.Dataplane, is func(*mesh.Inbound) bool) {
	found := false
	for i := range d.Spec.Networking.Inbound {
		inbound := &d.Spec.Networking.Inbound[i]
		if !is(inbound) {
			continue
		}
		found = true
		at := d.InboundAddress(inbound)
		if inbound.State == mesh.InboundIgnored || !at.IsValid() {
			continue
		}
		b.protocols = append(b.protocols, inbound.AppProtocol())
		h := b.state.inboundHealth(d, inbound)
		merge(b.endpoints, Endpoint{
			Address:     at,
			Health:      h.Health,
			Reason:      h.Reason,
			Proxy:       d.Name,
			Sidecar:     true,
			Node:        d.Node(),
			ServerFirst: inbound.ServerFirst,
		})
	}
	if found {
		b.service.Identities = append(b.service.Identities, d.SPIFFEID(b.state.trustDomain))
	}
}

// objectEndpoint returns an endpoint of a Service object, and the SPIFFE ID of its proxy if it has one.
func (s *state) objectEndpoint(meshName string, o *mesh.ServiceEndpoint) (e Endpoint, identity string) {
	h := endpointHealth(o.Health)
	e = Endpoint{Address: mesh.AddrPort(o.Address, o.Port), Health: h.Health, Reason: h.Reason, Proxy: o.Dataplane,
		Declared: true, Node: o.NodeName}
	switch {
	case o.Restarting:
		e.Reason = Restarting
	case o.Frozen && e.Health != NotReady:
		e.Reason = Frozen
	}
	if o.Dataplane == "" {
		return e, ""
	}
	p := s.meshes[meshName].proxies[o.Dataplane]
	if p == nil || p.dataplane == nil {
		e.Health, e.Reason = NotReady, UnknownDataplane // it is unknown whether the endpoint accepts plaintext
		return e, ""
	}
	if e.Health == Ready && s.observed[p.dataplane.ID()].Held {
		e.Health, e.Reason = Draining, LivenessHeld
	}
	e.Sidecar, e.Node = true, cmp.Or(o.NodeName, p.dataplane.Node())
	for in := range p.dataplane.Spec.Networking.ActiveInbounds() {
		if in.Port == o.Port {
			e.ServerFirst = e.ServerFirst || in.ServerFirst
		}
	}
	return e, p.dataplane.SPIFFEID(s.trustDomain)
}

// merge adds an endpoint. If two endpoints have the same address, it keeps the one with a sidecar, since that may
// refuse a plain connection; else the healthier one, since the former owner of an address remains as not ready; else
// the one with ServerFirst; else the first by name, so that the order of the inbounds does not matter.
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

// protocolOf returns the protocol of the Service object if it exists, otherwise of the port of the MeshService,
// otherwise of the inbounds.
func protocolOf(o *mesh.Service, port *portInput, inbounds []mesh.Protocol) mesh.Protocol {
	switch {
	case o != nil && o.Spec.Protocol != "":
		return o.Spec.Protocol
	case port != nil:
		return port.AppProtocol
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
