package agents

import (
	"fmt"
	"net/netip"
	"strings"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// featureInbounds says that this control plane sends Inbounds.
const featureInbounds = "inbounds"

// Listeners are the inbound listeners of a proxy, as its Envoy has answered them.
type Listeners struct {
	// Accepted are the addresses of those that Envoy has accepted.
	Accepted []netip.AddrPort
	// Refused are those that it has refused, each "<name>: <reason>".
	Refused []string
}

// ObserveListeners records what the Envoy of a proxy has answered, and lets its agent know. It returns at once.
func (s *Server) ObserveListeners(id mesh.ID, l Listeners) {
	s.mu.Lock()
	if len(l.Refused) == 0 {
		delete(s.refused, id)
	} else {
		s.refused[id] = strings.Join(l.Refused, "; ")
	}
	s.mu.Unlock()
	s.Observe(id, func(o *mesh.Observation) {
		o.ListenersKnown, o.Listeners = true, mesh.MakeAddresses(l.Accepted)
	})
	s.wakeSession(id)
}

// expectListeners records that a proxy which has never joined has no listeners yet, so that its endpoints wait for them.
func (s *Server) expectListeners(id mesh.ID) {
	s.Observe(id, func(o *mesh.Observation) {
		if !o.Joined {
			o.ListenersKnown = true
		}
	})
}

// inbounds returns what the agent of a proxy should know of its inbounds, nil while nothing is known.
func (s *Server) inbounds(id mesh.ID) *agentv1.Inbounds {
	_, p := s.o.View().Proxy(id)
	o := s.observed.of(id)
	if p == nil || !o.ListenersKnown {
		return nil
	}
	for i := range p.Dataplane.Spec.Networking.Inbound {
		in := &p.Dataplane.Spec.Networking.Inbound[i]
		if o.Accepts(p.Dataplane, in) {
			continue
		}
		s.mu.Lock()
		refused := s.refused[id]
		s.mu.Unlock()
		if refused != "" {
			return &agentv1.Inbounds{Reason: "envoy refuses a listener: " + refused}
		}
		return &agentv1.Inbounds{Reason: fmt.Sprintf("envoy has not accepted the listener of the inbound on port %d yet", in.Port)}
	}
	return &agentv1.Inbounds{Accepted: true}
}

// pushInbounds sends what the agent should know of its inbounds, if it has not been sent.
func (s *Server) pushInbounds(sess *session) error {
	now := s.inbounds(sess.peer.ID())
	last := sess.pushedInbounds
	if now == nil || last != nil && last.GetAccepted() == now.GetAccepted() && last.GetReason() == now.GetReason() {
		return nil
	}
	sess.pushedInbounds = now
	return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Inbounds{Inbounds: now}})
}
