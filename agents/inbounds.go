package agents

import (
	"context"
	"fmt"
	"net/netip"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/meshview"
)

// Listeners are the inbound listeners of a proxy, as its Envoy has answered them.
type Listeners struct {
	// Accepted are the addresses of those that Envoy has accepted.
	Accepted []netip.AddrPort
	// Refused are the reasons why it has refused others, by address.
	Refused map[netip.AddrPort]string
}

// loadUnaccepted restores which proxies had no listener before the restart.
func (s *Server) loadUnaccepted() error {
	ids, err := s.unacceptedRecords.all()
	for _, id := range ids {
		s.unaccepted[id] = true
		s.Observe(id, func(o *mesh.Observation) { o.ListenersKnown = true })
	}
	return err
}

// ObserveListeners records what the Envoy of a proxy has answered, and lets its agent know. It does not wait for the agent.
func (s *Server) ObserveListeners(id mesh.ID, l Listeners) {
	s.mu.Lock()
	if len(l.Refused) == 0 {
		delete(s.refused, id)
	} else {
		s.refused[id] = l.Refused
	}
	s.mu.Unlock()
	if len(l.Accepted) > 0 {
		s.forgetUnaccepted(id)
	}
	s.Observe(id, func(o *mesh.Observation) {
		o.ListenersKnown, o.Listeners = true, mesh.MakeAddresses(l.Accepted)
	})
	s.wakeSession(id)
}

// RefusedListeners returns for people why the Envoy of a proxy refuses listeners of inbounds, by their address. The result must not be
// changed.
func (s *Server) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused[id] // it is replaced, never changed
}

// expectListeners records that a proxy which has never joined has no listeners yet, so that its endpoints wait for them.
func (s *Server) expectListeners(id mesh.ID) error {
	if s.observed.of(id).Joined {
		return nil
	}
	if err := s.unacceptedRecords.write(id, s.o.Now()); err != nil {
		return fmt.Errorf("write %s proxy: %w", s.unacceptedRecords.name, err)
	}
	s.mu.Lock()
	s.unaccepted[id] = true
	s.mu.Unlock()
	s.Observe(id, func(o *mesh.Observation) { o.ListenersKnown = true })
	return nil
}

// forgetUnaccepted removes a proxy from unacceptedRecords, if it is there.
func (s *Server) forgetUnaccepted(id mesh.ID) {
	s.mu.Lock()
	known := s.unaccepted[id]
	delete(s.unaccepted, id)
	s.mu.Unlock()
	if !known {
		return
	}
	if err := s.unacceptedRecords.remove(id); err != nil {
		meshName, name := mesh.SplitID(id)
		// After a restart its endpoint waits for Envoy again, which is not long.
		s.o.Logger.ErrorContext(context.Background(), "record of unaccepted listeners not removed", "mesh", meshName, "proxy", name, "err", err)
	}
}

// forgetListeners forgets what is known of a proxy that has not joined any more.
func (s *Server) forgetListeners(id mesh.ID) {
	s.forgetUnaccepted(id)
	s.mu.Lock()
	delete(s.refused, id)
	s.mu.Unlock()
	s.Observe(id, func(o *mesh.Observation) { o.ListenersKnown, o.Listeners = false, "" })
}

// inbounds returns what the agent of a proxy should know of its inbounds, nil while nothing is known.
func (s *Server) inbounds(id mesh.ID) *agentv1.ControlMessage {
	reason, known := s.unreached(id)
	if !known {
		return nil
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Inbounds{Inbounds: &agentv1.Inbounds{Accepted: reason == "", Reason: reason}}}
}

// unreached returns why clients do not reach an inbound of a proxy, "" if they reach all, and whether that is known.
func (s *Server) unreached(id mesh.ID) (reason string, known bool) {
	_, p := s.o.View().Proxy(id)
	o := s.observed.of(id)
	if p == nil || !o.ListenersKnown {
		return "", false
	}
	if !meshview.WorkloadMatches(p.Dataplane, o) {
		return fmt.Sprintf("the certificate is for workload %q, the Dataplane has workload %q: clients refuse it",
			mesh.WorkloadText(o.Path), mesh.WorkloadText(p.Dataplane.SPIFFEPath())), true
	}
	for _, at := range listenersOf(p.Dataplane) {
		if o.Listeners.Has(at) {
			continue
		}
		s.mu.Lock()
		reason, refused := s.refused[id][at]
		s.mu.Unlock()
		if refused {
			return fmt.Sprintf("envoy refuses the listener at %s: %s", at, cut.Text(reason, agentv1.MaxReason)), true
		}
		return fmt.Sprintf("envoy has not accepted the listener at %s yet", at), true
	}
	return "", true
}

// listenersOf returns where others than the application reach a proxy.
func listenersOf(d *mesh.Dataplane) []netip.AddrPort {
	var all []netip.AddrPort
	for in := range d.Spec.Networking.ActiveInbounds() {
		all = append(all, d.ListenerAddress(in))
	}
	return all
}
