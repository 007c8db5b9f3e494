package observed

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

// Listeners are the listeners of a proxy, as its Envoy has answered them.
type Listeners struct {
	// Accepted are the addresses of those for inbounds that Envoy has accepted, Outbounds of those for the application's own traffic.
	Accepted, Outbounds []netip.AddrPort
	// Refused are the reasons why it has refused others, by address.
	Refused map[netip.AddrPort]string
	// Since is when Envoy has opened the newest of its ADS streams here.
	Since time.Time
}

// loadUnaccepted restores which proxies had no listener before the restart.
func (s *State) loadUnaccepted() error {
	ids, err := s.unacceptedRecords.All()
	for _, id := range ids {
		s.unaccepted[id] = true
		s.expectListeners(id)
	}
	return err
}

// expectListeners has a proxy wait for its listeners.
func (s *State) expectListeners(id mesh.ID) {
	s.updateListeners(id, func(m *peerv1.Listeners, _ facts.Order) {
		if m.GetOutbounds() == nil {
			m.Outbounds = &peerv1.Outbounds{}
		}
	})
}

// updateListeners changes what this replica knows of the listeners of a proxy. newest is the order of what all replicas know.
func (s *State) updateListeners(id mesh.ID, change func(m *peerv1.Listeners, newest facts.Order)) {
	_ = s.facts.Listeners.Update(id, func(own, newest facts.Fact[*peerv1.Listeners]) facts.Fact[*peerv1.Listeners] { // they are not stored
		m := &peerv1.Listeners{
			Order: own.Order().Proto(), Accepted: own.Said.GetAccepted(), Refused: own.Said.GetRefused(), Outbounds: own.Said.GetOutbounds(),
		}
		change(m, newest.Order())
		return facts.Fact[*peerv1.Listeners]{Said: m}
	})
}

// ObserveListeners records what the Envoy of a proxy has answered.
func (s *State) ObserveListeners(id mesh.ID, l Listeners) {
	s.mu.Lock()
	opened := !s.streams[id].Equal(l.Since)
	s.streams[id] = l.Since
	s.mu.Unlock()
	if len(l.Accepted) > 0 || len(l.Outbounds) > 0 && !hasInbounds(s.o.View().Dataplane(id)) {
		s.forgetUnaccepted(id)
	}
	s.updateListeners(id, func(m *peerv1.Listeners, newest facts.Order) {
		m.Accepted, m.Outbounds = textsOf(l.Accepted), &peerv1.Outbounds{Accepted: textsOf(l.Outbounds)}
		m.Refused = facts.Texts(l.Refused)
		if opened {
			m.Order = facts.OrderAt(l.Since).After(newest).Proto()
		}
	})
}

func textsOf(list []netip.AddrPort) []string { return mesh.MakeAddresses(list).Texts() }

// hasInbounds reports whether others reach the proxy of d.
func hasInbounds(d *mesh.Dataplane) bool {
	if d != nil {
		for range d.Spec.Networking.ActiveInbounds() {
			return true
		}
	}
	return false
}

// ObserveAsked records the listeners that Envoy has, as it has said itself, while the replica with its ADS stream is missing. What that replica
// says is newer, whenever it comes.
func (s *State) ObserveAsked(id mesh.ID, inbounds, outbounds []netip.AddrPort) {
	s.updateListeners(id, func(m *peerv1.Listeners, _ facts.Order) {
		m.Accepted, m.Outbounds = textsOf(inbounds), &peerv1.Outbounds{Accepted: textsOf(outbounds)}
	})
}

// RefusedListeners returns, to be shown, why the Envoy of a proxy refuses listeners, by their address.
func (s *State) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	return facts.Reasons(s.facts.Listeners.Newest(id).Said.GetRefused())
}

// ExpectListeners records that a proxy which has never joined has no listeners yet, so that its endpoints wait for them.
func (s *State) ExpectListeners(id mesh.ID) error {
	if s.Of(id).Joined {
		return nil
	}
	if err := s.unacceptedRecords.Add(id, s.o.Now()); err != nil {
		return fmt.Errorf("write %s proxy: %w", s.unacceptedRecords.Name, err)
	}
	s.mu.Lock()
	s.unaccepted[id] = true
	s.mu.Unlock()
	s.expectListeners(id)
	return nil
}

// forgetUnaccepted removes a proxy from unacceptedRecords, if it is there.
func (s *State) forgetUnaccepted(id mesh.ID) {
	s.mu.Lock()
	known := s.unaccepted[id]
	delete(s.unaccepted, id)
	s.mu.Unlock()
	if !known {
		return
	}
	if err := s.unacceptedRecords.Remove(id); err != nil {
		meshName, name := mesh.SplitID(id)
		// After a restart its endpoint waits for Envoy again, which is not long.
		s.o.Logger.ErrorContext(context.Background(), "record of unaccepted listeners not removed", "mesh", meshName, "proxy", name, "err", err)
	}
}

// forgetListeners forgets the stream of a proxy that no longer counts as joined.
func (s *State) forgetListeners(id mesh.ID) {
	s.forgetUnaccepted(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, id)
}
