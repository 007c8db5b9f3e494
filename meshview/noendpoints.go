package meshview

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// NoEndpoints returns for people why a service has no endpoint. ref is how an outbound names it, nil if none does by a BackendRef.
func (m *Mesh) NoEndpoints(s *Service, ref *mesh.BackendRef) string {
	if ref == nil {
		if of, port := m.portOf(s.Name); of != nil {
			return m.notMatched(of, port)
		}
		return m.noInbound(s)
	}
	of := m.referenced(ref)
	switch {
	case of == nil && len(ref.Labels) > 0:
		return "no MeshService has the labels " + mesh.Pairs(ref.Labels)
	case of == nil:
		return fmt.Sprintf("there is no MeshService %q%s", ref.Name, mesh.DidYouMean(ref.Name, m.MeshServices.Names()))
	}
	for i := range of.Object.Spec.Ports {
		if port := &of.Object.Spec.Ports[i]; port.Port == ref.Port {
			return m.notMatched(of, port)
		}
	}
	return fmt.Sprintf("MeshService %q has no port %d: it has %s", of.Object.Name, ref.Port, ports(of.Object))
}

// portOf returns the port of a MeshService that a service is, nil if it is none.
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

// referenced returns the MeshService that a BackendRef means, nil if there is none: of several with the labels the first by name.
func (m *Mesh) referenced(ref *mesh.BackendRef) *MeshService {
	if len(ref.Labels) == 0 {
		return m.MeshServices.Get(ref.Name)
	}
	var first *MeshService
	for _, s := range m.MeshServices.All() {
		if ref.Selects(s.Object) && (first == nil || s.Object.Name < first.Object.Name) {
			first = s
		}
	}
	return first
}

// notMatched says why the port of a MeshService has no endpoint.
func (m *Mesh) notMatched(s *MeshService, port *mesh.MeshServicePort) string {
	if len(s.Dataplanes) == 0 {
		return fmt.Sprintf("MeshService %q selects no Dataplane: its selector is %s", s.Object.Name, s.Object.Spec.Selector)
	}
	type inboundPort struct {
		number uint32
		name   string
	}
	has := map[inboundPort]bool{}
	for _, name := range s.Dataplanes {
		p := m.Proxies.Get(name)
		if p == nil {
			continue
		}
		for i := range p.Dataplane.Spec.Networking.Inbound {
			in := &p.Dataplane.Spec.Networking.Inbound[i]
			if port.Selects(in) {
				return fmt.Sprintf("the inbounds of MeshService %q, port %d, have state %s", s.Object.Name, port.Port, mesh.InboundIgnored)
			}
			has[inboundPort{in.Port, in.Name}] = true
		}
	}
	var texts []string
	for p := range has {
		texts = append(texts, portText(p.number, p.name))
	}
	slices.Sort(texts)
	return fmt.Sprintf("port %d of MeshService %q has targetPort %s, and no inbound of the Dataplanes that it selects (%s) has that: they have %s",
		port.Port, s.Object.Name, cmp.Or(string(port.TargetPort), strconv.FormatUint(uint64(port.Port), 10)), mesh.Few(s.Dataplanes), cmp.Or(mesh.Few(texts), "no inbound"))
}

// noInbound says why a service that is no port of a MeshService has no endpoint.
func (m *Mesh) noInbound(s *Service) string {
	if s.Unknown && m.MeshServices.Get(s.Name) != nil {
		return fmt.Sprintf("no Dataplane has an inbound with %s %s, and there is no such Service; a MeshService of that name is reached by backendRef", mesh.TagService, s.Name)
	}
	if s.Unknown {
		return fmt.Sprintf("no Dataplane has an inbound with %s %s, and there is no such Service%s", mesh.TagService, s.Name, mesh.DidYouMean(s.Name, m.knownServices()))
	}
	for _, p := range m.Proxies.All() {
		if slices.ContainsFunc(p.Dataplane.Spec.Networking.Inbound, func(in mesh.Inbound) bool { return in.Tags.Service() == s.Name }) {
			return "its inbounds have state " + string(mesh.InboundIgnored)
		}
	}
	return "its Service names no endpoint"
}

// knownServices returns the names of the services that somebody has.
func (m *Mesh) knownServices() []string {
	var known []string
	for name, s := range m.Services.All() {
		if !s.Unknown {
			known = append(known, name)
		}
	}
	return known
}

// ports returns the ports of a MeshService for people.
func ports(s *mesh.MeshService) string {
	all := make([]string, 0, len(s.Spec.Ports))
	for _, p := range s.Spec.Ports {
		all = append(all, portText(p.Port, p.Name))
	}
	return cmp.Or(mesh.Few(all), "none")
}

func portText(port uint32, name string) string {
	text := strconv.FormatUint(uint64(port), 10)
	if name != "" {
		text += " (" + name + ")"
	}
	return text
}
