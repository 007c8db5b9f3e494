package admin

import (
	"fmt"

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

// reasonOf returns for people why an endpoint is not ready, "" if it is. p is nil for an endpoint of a Service object.
func reasonOf(p *meshview.Proxy, r meshview.Reason) string {
	switch r {
	case meshview.DeclaredNotReady:
		return "health.ready is false"
	case meshview.UnknownDataplane:
		return "its Dataplane is not known"
	case meshview.NeverJoined:
		return "its proxy has never joined"
	case meshview.OtherWorkload:
		return otherWorkload(p)
	case meshview.ListenerNotAccepted:
		return "its Envoy refuses the listener, or has not accepted it yet"
	default:
		return ""
	}
}

// otherWorkload returns how the workloads of certificate and Dataplane differ, "" if they do not.
func otherWorkload(p *meshview.Proxy) string {
	if p == nil || meshview.WorkloadMatches(p.Dataplane, p.Observed) {
		return ""
	}
	return fmt.Sprintf("the certificate is for workload %q, the Dataplane has workload %q",
		mesh.WorkloadText(p.Observed.Path), mesh.WorkloadText(p.Dataplane.SPIFFEPath()))
}

func inboundsOf(p *meshview.Proxy) []*adminv1.InboundHealth {
	var all []*adminv1.InboundHealth
	for _, in := range p.Inbounds {
		all = append(all, &adminv1.InboundHealth{Health: healthOf(in.Health), Reason: reasonOf(p, in.Reason)})
	}
	return all
}

// endpointOf returns an endpoint of a service. agents are the states of all agents.
func endpointOf(m *meshview.Mesh, e meshview.Endpoint, agents map[mesh.ID]*adminv1.AgentState) *adminv1.Endpoint {
	entry := &adminv1.Endpoint{Address: e.Address.String(), Health: healthOf(e.Health), Sidecar: e.Sidecar, Dataplane: e.Proxy, Declared: e.Declared}
	p := m.Proxies.Get(e.Proxy)
	entry.Reason = reasonOf(p, e.Reason)
	if p != nil && agents[p.ID()].GetPhase() == adminv1.AgentState_LOST {
		entry.AgentLostSince = agents[p.ID()].GetSince()
	}
	return entry
}
