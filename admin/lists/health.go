package lists

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

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

// shown returns an endpoint's health and reason for users. For a stopped proxy, whose listeners and application no
// longer exist, only the health in its object matters.
func (a *Answers) shown(
	p *meshview.Proxy, at netip.AddrPort, h meshview.InboundHealth, agent *adminv1.AgentState,
) (adminv1.Endpoint_Health, string) {
	health := shownHealth(h, agent)
	if health == adminv1.Endpoint_STOPPED {
		return health, ""
	}
	return health, a.reasonOf(p, at, h.Reason)
}

// shownHealth returns only the health, see shown.
func shownHealth(h meshview.InboundHealth, agent *adminv1.AgentState) adminv1.Endpoint_Health {
	switch h.Reason {
	case meshview.DeclaredNotReady, meshview.StateNotReady, meshview.StateIgnored, meshview.UnknownDataplane,
		meshview.Restarting,
		meshview.Frozen:
	default:
		if stopped(agent) {
			return adminv1.Endpoint_STOPPED
		}
	}
	return healthOf(h.Health)
}

// stopped reports whether an agent has drained and exited.
func stopped(agent *adminv1.AgentState) bool { return agent.GetPhase() == adminv1.AgentState_STOPPED }

// reasonOf returns why the endpoint at an address is not ready. For ready and draining endpoints it returns "", unless
// they are frozen. p is nil for an endpoint of a Service object.
func (a *Answers) reasonOf(p *meshview.Proxy, at netip.AddrPort, r meshview.Reason) string {
	switch r {
	case meshview.DeclaredNotReady:
		return "health.ready is false"
	case meshview.StateNotReady:
		return "its state is NotReady"
	case meshview.StateIgnored:
		return "its state is Ignored, so it has no listener"
	case meshview.UnknownDataplane:
		return "its Dataplane is unknown"
	case meshview.Restarting:
		return mesh.RestartingReason
	case meshview.NeverJoined:
		return neverJoined
	case meshview.OtherWorkload:
		return otherWorkload(p)
	case meshview.ListenerNotAccepted:
		return a.unaccepted(p, at)
	case meshview.ApplicationNotReady:
		return cmp.Or(a.Agents.NotServing(p.ID())[at], "its application is not ready")
	case meshview.CertificateExpired:
		return certificateExpired
	case meshview.LivenessHeld:
		return livenessHeld(p)
	case meshview.Frozen:
		return mesh.FrozenReason +
			"its node and most of its zone, or of the mesh, are not seen: the endpoint stays although Kubernetes removes it"
	default:
		return ""
	}
}

const certificateExpired = "its certificate has expired, and callers in the mesh reject it"

const neverJoined = "its proxy has never joined"

// unaccepted returns why the Envoy of a proxy lacks the listener at an address.
func (a *Answers) unaccepted(p *meshview.Proxy, at netip.AddrPort) string {
	if refusal := a.Agents.RefusedListeners(p.ID())[at]; refusal != "" {
		return "its Envoy refuses the listener: " + refusal
	}
	return "its Envoy has not accepted the listener yet"
}

// livenessHeld describes a held restart. For a pod, whose Dataplane is POD.NAMESPACE, it adds the command that explains
// it.
func livenessHeld(p *meshview.Proxy) string {
	text := "its liveness probe fails, and the restart is held back until it is granted"
	if namespace, pod, ok := mesh.ObjectOf(p.Dataplane.Name); ok {
		text += fmt.Sprintf(": sondectl restarts explain %s -n %s", pod, namespace)
	}
	return text
}

// otherWorkload describes how the workloads of certificate and Dataplane differ, "" if they are equal.
func otherWorkload(p *meshview.Proxy) string {
	if p == nil || meshview.WorkloadMatches(p.Dataplane, p.Observed) {
		return ""
	}
	return fmt.Sprintf("the certificate is for workload %q, the Dataplane has workload %q",
		mesh.WorkloadText(p.Observed.Path), mesh.WorkloadText(p.Dataplane.SPIFFEPath()))
}

// inboundsOf returns the health of a proxy's inbounds. services is the result of servicesOfInbounds.
func (a *Answers) inboundsOf(
	p *meshview.Proxy, agent *adminv1.AgentState, services map[inbound]inboundServices,
) []*adminv1.InboundHealth {
	var all []*adminv1.InboundHealth
	for i, in := range p.Inbounds {
		at := p.Dataplane.InboundAddress(&p.Dataplane.Spec.Networking.Inbound[i])
		of := services[inbound{p.ID(), at}]
		entry := &adminv1.InboundHealth{Services: of.all}
		entry.Health, entry.Reason = a.shown(p, at, in, agent)
		entry.Since = known(a.Since.Inbound(p.ID(), at))
		if entry.GetHealth() == adminv1.Endpoint_DRAINING {
			entry.Serves = of.drained
		}
		entry.Unchecked = entry.GetHealth() == adminv1.Endpoint_READY &&
			p.Dataplane.Unchecked(&p.Dataplane.Spec.Networking.Inbound[i])
		all = append(all, entry)
	}
	return all
}

// outboundsOf returns the health of a proxy's outbounds.
func (a *Answers) outboundsOf(p *meshview.Proxy, agent *adminv1.AgentState) []*adminv1.OutboundHealth {
	var all []*adminv1.OutboundHealth
	net := &p.Dataplane.Spec.Networking
	for i, at := range p.Dataplane.OutboundListeners() {
		entry := &adminv1.OutboundHealth{Address: at.String(), Health: adminv1.Endpoint_READY}
		if net.TransparentProxying == nil {
			entry.Service = net.Outbound[i].Service()
		}
		switch {
		case agent.GetPhase() == adminv1.AgentState_NEVER_JOINED:
			entry.Health, entry.Reason = adminv1.Endpoint_NOT_READY, neverJoined
		case !p.Observed.AcceptsOutbound(at):
			entry.Health, entry.Reason = adminv1.Endpoint_NOT_READY, a.unaccepted(p, at)
		}
		entry.Since = known(a.Since.Outbound(p.ID(), at))
		all = append(all, entry)
	}
	return all
}

// known returns the message for a time, nil for an unknown time.
func known(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// endpointOf returns an endpoint of a service. agents has the state of each agent.
func (a *Answers) endpointOf(
	v *meshview.View, m *meshview.Mesh, e meshview.Endpoint, agents map[mesh.ID]*adminv1.AgentState,
) *adminv1.Endpoint {
	entry := &adminv1.Endpoint{Address: e.Address.String(), Sidecar: e.Sidecar, Dataplane: e.Proxy, Declared: e.Declared,
		Node: e.Node}
	p, agent := agentOf(m, e, agents)
	entry.Health, entry.Reason = a.shown(p, e.Address, meshview.InboundHealth{Health: e.Health, Reason: e.Reason}, agent)
	entry.Unchecked = v.Unchecked(m, e)
	if agent.GetPhase() == adminv1.AgentState_LOST {
		entry.AgentLostSince = agent.GetSince()
	}
	return entry
}

// agentOf returns the proxy of an endpoint and the state of its agent, both nil for an endpoint without a sidecar.
func agentOf(
	m *meshview.Mesh, e meshview.Endpoint, agents map[mesh.ID]*adminv1.AgentState,
) (*meshview.Proxy, *adminv1.AgentState) {
	p := m.Proxies.Get(e.Proxy)
	if p == nil {
		return nil, nil
	}
	return p, agents[p.ID()]
}
