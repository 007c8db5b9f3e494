package session

import (
	"fmt"
	"net/netip"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/meshview"
)

// inbounds returns the state of a proxy's inbounds for its agent, nil while it is unknown.
func (s *Sessions) inbounds(id mesh.ID) *agentv1.ControlMessage {
	reason, known := s.unreached(id)
	if !known {
		return nil
	}
	return &agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_Inbounds{Inbounds: &agentv1.Inbounds{Accepted: reason == "", Reason: reason}}}
}

// unreached returns why clients do not reach an inbound of a proxy, "" if they reach all, and false while it is
// unknown.
func (s *Sessions) unreached(id mesh.ID) (reason string, known bool) {
	_, p := s.o.View().Proxy(id)
	o := s.o.Observed.Of(id)
	if p == nil || !o.ListenersKnown {
		return "", false
	}
	if !meshview.WorkloadMatches(p.Dataplane, o) {
		return fmt.Sprintf("the certificate is for workload %q, the Dataplane has workload %q: clients refuse it",
			mesh.WorkloadText(o.Path), mesh.WorkloadText(p.Dataplane.SPIFFEPath())), true
	}
	for _, at := range listenersOf(p.Dataplane) {
		if !o.Listeners.Has(at) {
			return s.unaccepted(id, at), true
		}
	}
	return "", true
}

// outbounds returns the state of a proxy's outbound listeners for its agent, nil while it is unknown.
func (s *Sessions) outbounds(id mesh.ID) *agentv1.ControlMessage {
	reason, known := s.unbound(id)
	if !known {
		return nil
	}
	return &agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_Outbounds{Outbounds: &agentv1.Outbounds{Accepted: reason == "", Reason: reason}}}
}

// unbound returns why Envoy lacks an outbound listener, "" if it has accepted all, and false while that is unknown.
func (s *Sessions) unbound(id mesh.ID) (reason string, known bool) {
	_, p := s.o.View().Proxy(id)
	o := s.o.Observed.Of(id)
	if p == nil || !o.ListenersKnown {
		return "", false
	}
	for _, at := range p.Dataplane.OutboundListeners() {
		if !o.AcceptsOutbound(at) {
			return s.unaccepted(id, at), true
		}
	}
	return "", true
}

// unaccepted returns why Envoy has not accepted a listener.
func (s *Sessions) unaccepted(id mesh.ID, at netip.AddrPort) string {
	if reason, refused := s.o.Observed.RefusedListeners(id)[at]; refused {
		return fmt.Sprintf("envoy refuses the listener at %s: %s", at, cut.Text(reason, agentv1.MaxReason))
	}
	return fmt.Sprintf("envoy has not accepted the listener at %s yet", at)
}

// listenersOf returns the addresses at which other clients than the application reach a proxy.
func listenersOf(d *mesh.Dataplane) []netip.AddrPort {
	var all []netip.AddrPort
	for in := range d.Spec.Networking.ActiveInbounds() {
		all = append(all, d.ListenerAddress(in))
	}
	return all
}
