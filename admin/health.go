package admin

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

func healthOf(h meshview.Health) adminv1.Endpoint_Health {
	switch h {
	case meshview.Ready:
		return adminv1.Endpoint_READY
	case meshview.Draining:
		return adminv1.Endpoint_DRAINING
	default:
		return adminv1.Endpoint_NOT_READY
	}
}

// reasonOf returns why the endpoint at an address is not ready, "" if it is, or drains, unless it is frozen. p is nil for an endpoint of a Service object.
func (s *service) reasonOf(p *meshview.Proxy, at netip.AddrPort, r meshview.Reason) string {
	switch r {
	case meshview.DeclaredNotReady:
		return "health.ready is false"
	case meshview.StateNotReady:
		return "its state is NotReady"
	case meshview.StateIgnored:
		return "its state is Ignored, so it has no listener"
	case meshview.UnknownDataplane:
		return "its Dataplane is not known"
	case meshview.NeverJoined:
		return "its proxy has never joined"
	case meshview.OtherWorkload:
		return otherWorkload(p)
	case meshview.ListenerNotAccepted:
		if refusal := s.o.RefusedListeners(p.ID())[at]; refusal != "" {
			return "its Envoy refuses the listener: " + refusal
		}
		return "its Envoy has not accepted the listener yet"
	case meshview.ApplicationNotReady:
		return cmp.Or(s.o.NotServing(p.ID())[at], "its application is not ready")
	case meshview.LivenessHeld:
		return livenessHeld(p)
	case meshview.Frozen:
		return mesh.FrozenReason + "its node is not seen, with most of its zone or of the mesh, so the endpoint stays though Kubernetes takes it away"
	default:
		return ""
	}
}

// livenessHeld says that a restart is held back, and of a pod, whose Dataplane is POD.NAMESPACE, what says why.
func livenessHeld(p *meshview.Proxy) string {
	text := "its liveness probe fails, and the restart is held back until it is granted"
	if i := strings.LastIndexByte(p.Dataplane.Name, '.'); i > 0 {
		text += fmt.Sprintf(": sondectl restarts explain %s -n %s", p.Dataplane.Name[:i], p.Dataplane.Name[i+1:])
	}
	return text
}

// otherWorkload returns how the workloads of certificate and Dataplane differ, "" if they do not.
func otherWorkload(p *meshview.Proxy) string {
	if p == nil || meshview.WorkloadMatches(p.Dataplane, p.Observed) {
		return ""
	}
	return fmt.Sprintf("the certificate is for workload %q, the Dataplane has workload %q",
		mesh.WorkloadText(p.Observed.Path), mesh.WorkloadText(p.Dataplane.SPIFFEPath()))
}

// inboundsOf returns the inbounds of a proxy. services are those of servicesOfInbounds.
func (s *service) inboundsOf(p *meshview.Proxy, services map[inbound][]string) []*adminv1.InboundHealth {
	var all []*adminv1.InboundHealth
	for i, in := range p.Inbounds {
		at := p.Dataplane.InboundAddress(&p.Dataplane.Spec.Networking.Inbound[i])
		all = append(all, &adminv1.InboundHealth{
			Health: healthOf(in.Health), Reason: s.reasonOf(p, at, in.Reason), Services: services[inbound{p.ID(), at}],
		})
	}
	return all
}

// endpointOf returns an endpoint of a service. agents are the states of all agents.
func (s *service) endpointOf(m *meshview.Mesh, e meshview.Endpoint, agents map[mesh.ID]*adminv1.AgentState) *adminv1.Endpoint {
	entry := &adminv1.Endpoint{Address: e.Address.String(), Health: healthOf(e.Health), Sidecar: e.Sidecar, Dataplane: e.Proxy, Declared: e.Declared, Node: e.Node}
	p := m.Proxies.Get(e.Proxy)
	entry.Reason = s.reasonOf(p, e.Address, e.Reason)
	if p != nil && agents[p.ID()].GetPhase() == adminv1.AgentState_LOST {
		entry.AgentLostSince = agents[p.ID()].GetSince()
	}
	return entry
}
