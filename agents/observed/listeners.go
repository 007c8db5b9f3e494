package observed

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Listeners are the inbound listeners of a proxy, as its Envoy has answered them.
type Listeners struct {
	// Accepted are the addresses of those that Envoy has accepted.
	Accepted []netip.AddrPort
	// Refused are the reasons why it has refused others, by address.
	Refused map[netip.AddrPort]string
	// Since is when Envoy has opened the newest of its ADS streams here.
	Since time.Time
}

// loadUnaccepted restores which proxies had no listener before the restart.
func (s *State) loadUnaccepted() error {
	ids, err := s.unacceptedRecords.all()
	for _, id := range ids {
		s.unaccepted[id] = true
		s.observed.update(id, func(f *facts) { f.ListenersKnown = true })
	}
	return err
}

// ObserveListeners records what the Envoy of a proxy has answered.
func (s *State) ObserveListeners(id mesh.ID, l Listeners) {
	newest := Order{}
	for _, said := range s.Said(id) {
		if order := OrderOf(said.Proxy.GetListeners().GetOrder()); order.Compare(newest) > 0 {
			newest = order
		}
	}
	s.mu.Lock()
	opened := !s.streams[id].Equal(l.Since)
	s.streams[id] = l.Since
	if len(l.Refused) == 0 {
		delete(s.refused, id)
	} else {
		s.refused[id] = l.Refused
	}
	s.mu.Unlock()
	if len(l.Accepted) > 0 {
		s.forgetUnaccepted(id)
	}
	s.observed.update(id, func(f *facts) {
		f.ListenersKnown, f.Listeners = true, mesh.MakeAddresses(l.Accepted)
		if opened {
			f.stream = OrderAt(l.Since).After(newest)
		}
	})
	s.o.Peers.Changed(id) // also if only a reason has changed
}

// ObserveAsked records the listeners that Envoy has, as it has said itself, while the replica with its ADS stream is missing. What that replica
// says is newer, whenever it comes.
func (s *State) ObserveAsked(id mesh.ID, active []netip.AddrPort) {
	s.observed.update(id, func(f *facts) { f.ListenersKnown, f.Listeners = true, mesh.MakeAddresses(active) })
}

// RefusedListeners returns, to be shown, why the Envoy of a proxy refuses listeners of inbounds, by their address. The result must not be
// changed.
func (s *State) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	s.mu.Lock()
	refused := s.refused[id] // it is replaced, never changed
	s.mu.Unlock()
	newest := s.observed.factsOf(id).stream
	for _, said := range s.Said(id) {
		if order := OrderOf(said.Proxy.GetListeners().GetOrder()); order.Compare(newest) > 0 {
			newest, refused = order, reasonsOf(said.Proxy.GetListeners().GetRefused())
		}
	}
	return refused
}

// ExpectListeners records that a proxy which has never joined has no listeners yet, so that its endpoints wait for them.
func (s *State) ExpectListeners(id mesh.ID) error {
	if s.Of(id).Joined {
		return nil
	}
	if err := s.unacceptedRecords.write(id, s.o.Now()); err != nil {
		return fmt.Errorf("write %s proxy: %w", s.unacceptedRecords.name, err)
	}
	s.mu.Lock()
	s.unaccepted[id] = true
	s.mu.Unlock()
	s.observed.update(id, func(f *facts) { f.ListenersKnown = true })
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
	if err := s.unacceptedRecords.remove(id); err != nil {
		meshName, name := mesh.SplitID(id)
		// After a restart its endpoint waits for Envoy again, which is not long.
		s.o.Logger.ErrorContext(context.Background(), "record of unaccepted listeners not removed", "mesh", meshName, "proxy", name, "err", err)
	}
}

// forgetListeners forgets what is known of a proxy that has not joined any more.
func (s *State) forgetListeners(id mesh.ID) {
	s.forgetUnaccepted(id)
	s.mu.Lock()
	delete(s.refused, id)
	delete(s.streams, id)
	s.mu.Unlock()
	s.observed.update(id, func(f *facts) { f.ListenersKnown, f.Listeners, f.stream = false, "", Order{} })
}
