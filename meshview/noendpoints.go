package meshview

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// EmptyCause is why a service has no endpoint.
type EmptyCause int

const (
	// NoMeshService means that no MeshService matches the name, or the labels, of the BackendRef.
	NoMeshService EmptyCause = iota + 1
	// NoServicePort means that the MeshService has no port with the number in the BackendRef.
	NoServicePort
	// NoDataplane means that the MeshService selects no Dataplane.
	NoDataplane
	// NoTargetPort means that no inbound of the Dataplanes that the MeshService selects has its targetPort.
	NoTargetPort
	// NoTaggedInbound means that no inbound has the name of the service as its tag, and no Service object exists.
	NoTaggedInbound
	// NoUsedInbound means that all inbounds have state Ignored.
	NoUsedInbound
	// NoAddress means that the Service object lists no address.
	NoAddress
)

// NoEndpoints says why a service has no endpoint.
type NoEndpoints struct {
	Cause   EmptyCause
	Service *Service
	// Ref is the BackendRef by which an outbound names the service, nil without one.
	Ref *mesh.BackendRef
	// MeshService is the MeshService that Ref or the service's name refers to or, with NoTaggedInbound, the one with
	// the same name; nil without one.
	MeshService *MeshService
	// Port is the port of the MeshService to which the service corresponds, nil without one.
	Port *mesh.MeshServicePort
	// Inbounds are, with NoTargetPort, the inbound ports of the selected Dataplanes, sorted.
	Inbounds []InboundPort
	// Names are, with NoMeshService and NoTaggedInbound, the existing names, one of which Ref or the outbound's tag may
	// have meant.
	Names []string
}

// InboundPort is the port of an inbound, and its name if it has one.
type InboundPort struct {
	Number uint32
	Name   string
}

// NoEndpoints returns why a service without endpoints has none. ref is the BackendRef by which an outbound names it,
// nil without one.
func (m *Mesh) NoEndpoints(s *Service, ref *mesh.BackendRef) NoEndpoints {
	why := NoEndpoints{Service: s, Ref: ref}
	if ref == nil {
		if why.MeshService, why.Port = m.portOf(s.Name); why.MeshService != nil {
			return m.notMatched(why)
		}
		return m.noInbound(why)
	}
	if why.MeshService = m.referenced(ref); why.MeshService == nil {
		why.Cause, why.Names = NoMeshService, m.MeshServices.Names()
		return why
	}
	spec := &why.MeshService.Object.Spec
	at := slices.IndexFunc(spec.Ports, func(p mesh.MeshServicePort) bool { return p.Port == ref.Port })
	if at < 0 {
		why.Cause = NoServicePort
		return why
	}
	why.Port = &spec.Ports[at]
	return m.notMatched(why)
}

// portOf returns the port of a MeshService to which a service corresponds, nil without one.
func (m *Mesh) portOf(service string) (*MeshService, *mesh.MeshServicePort) {
	of := m.MeshServices.Get(service[:max(0, strings.LastIndex(service, mesh.MeshServiceInfix))])
	if of == nil {
		return nil, nil
	}
	for i := range of.Object.Spec.Ports {
		if port := &of.Object.Spec.Ports[i]; mesh.MeshServiceName(of.Object.Name, port.Port) == service {
			return of, port
		}
	}
	return nil, nil
}

// referenced returns the MeshService that a BackendRef refers to, nil without one.
func (m *Mesh) referenced(ref *mesh.BackendRef) *MeshService {
	if len(ref.Labels) == 0 {
		return m.MeshServices.Get(ref.Name)
	}
	var found *MeshService
	var object *mesh.MeshService
	for _, s := range m.MeshServices.All() {
		if ref.Prefers(s.Object, object) {
			found, object = s, s.Object
		}
	}
	return found
}

// notMatched adds to why the reason why the port of a MeshService has no endpoint.
func (m *Mesh) notMatched(why NoEndpoints) NoEndpoints {
	why.Cause = NoDataplane
	for _, name := range why.MeshService.Dataplanes {
		why.Cause = NoTargetPort
		p := m.Proxies.Get(name)
		if p == nil {
			continue
		}
		for i := range p.Dataplane.Spec.Networking.Inbound {
			in := &p.Dataplane.Spec.Networking.Inbound[i]
			if why.Port.Selects(in) {
				why.Cause, why.Inbounds = NoUsedInbound, nil
				return why
			}
			why.Inbounds = append(why.Inbounds, InboundPort{in.Port, in.Name})
		}
	}
	slices.SortFunc(why.Inbounds, func(a, b InboundPort) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Name, b.Name))
	})
	why.Inbounds = slices.Compact(why.Inbounds)
	return why
}

// noInbound adds to why the reason for a service that is not a port of a MeshService.
func (m *Mesh) noInbound(why NoEndpoints) NoEndpoints {
	name := why.Service.Name
	switch {
	case why.Service.Unknown:
		why.Cause, why.MeshService, why.Names = NoTaggedInbound, m.MeshServices.Get(name), m.knownServices()
	case m.hasInbound(name):
		why.Cause = NoUsedInbound
	default:
		why.Cause = NoAddress
	}
	return why
}

// hasInbound reports whether an inbound of a Dataplane has the tag of a service.
func (m *Mesh) hasInbound(service string) bool {
	for _, p := range m.Proxies.All() {
		if slices.ContainsFunc(p.Dataplane.Spec.Networking.Inbound,
			func(in mesh.Inbound) bool { return in.Tags.Service() == service }) {
			return true
		}
	}
	return false
}

// knownServices returns the names of the services that exist.
func (m *Mesh) knownServices() []string {
	var known []string
	for name, s := range m.Services.All() {
		if !s.Unknown {
			known = append(known, name)
		}
	}
	return known
}
