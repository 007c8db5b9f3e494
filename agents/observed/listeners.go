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

// Listeners are the listeners of a proxy, as its Envoy acknowledged or rejected them.
type Listeners struct {
	// Accepted are the addresses of the inbound listeners that Envoy has accepted, Outbounds of the outbound listeners.
	Accepted, Outbounds []netip.AddrPort
	// Refused are the reasons why Envoy rejected the other listeners, by address.
	Refused map[netip.AddrPort]string
	// Since is when Envoy opened the newest of its ADS streams to this replica.
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

// expectListeners makes a proxy wait for its listeners.
func (s *State) expectListeners(id mesh.ID) {
	s.updateListeners(id, func(m *peerv1.Listeners, _ facts.Order) {
		if m.GetOutbounds() == nil {
			m.Outbounds = &peerv1.Outbounds{}
		}
	})
}

// updateListeners changes this replica's record of a proxy's listeners. newest is the order of the newest record of all
// replicas.
func (s *State) updateListeners(id mesh.ID, change func(m *peerv1.Listeners, newest facts.Order)) {
	// Listeners are not stored, so Update returns no error.
	_ = s.facts.Listeners.Update(id, func(own, newest facts.Fact[*peerv1.Listeners]) facts.Fact[*peerv1.Listeners] {
		m := &peerv1.Listeners{
			Order: own.Order().Proto(), Accepted: own.Said.GetAccepted(), Refused: own.Said.GetRefused(),
			Outbounds: own.Said.GetOutbounds(),
		}
		change(m, newest.Order())
		return facts.Fact[*peerv1.Listeners]{Said: m}
	})
}

// ObserveListeners records which listeners a proxy's Envoy has accepted and rejected.
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

// hasInbounds reports whether other proxies can call the proxy of d.
func hasInbounds(d *mesh.Dataplane) bool {
	if d != nil {
		for range d.Spec.Networking.ActiveInbounds() {
			return true
		}
	}
	return false
}

// ObserveAsked records the listeners that Envoy itself lists, while the replica with its ADS stream is disconnected. A
// report of that replica always counts as newer.
func (s *State) ObserveAsked(id mesh.ID, inbounds, outbounds []netip.AddrPort) {
	s.updateListeners(id, func(m *peerv1.Listeners, _ facts.Order) {
		m.Accepted, m.Outbounds = textsOf(inbounds), &peerv1.Outbounds{Accepted: textsOf(outbounds)}
	})
}

// RefusedListeners returns why a proxy's Envoy rejects listeners, by their address, for display.
func (s *State) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	return facts.Reasons(s.facts.Listeners.Newest(id).Said.GetRefused())
}

// ExpectListeners records that a proxy that has never joined has no listeners, so that its endpoints wait for them.
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

// forgetUnaccepted removes a proxy's record from unacceptedRecords, if it exists.
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
		// After a restart, its endpoint briefly waits for Envoy again.
		s.o.Logger.ErrorContext(context.Background(), "failed to remove the record of unaccepted listeners",
			"mesh", meshName, "proxy", name, "err", err)
	}
}

// forgetListeners forgets the ADS stream of a proxy that no longer counts as joined.
func (s *State) forgetListeners(id mesh.ID) {
	s.forgetUnaccepted(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, id)
}
