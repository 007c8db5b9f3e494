package xds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// ListenerStatus lists which desired listeners a proxy has accepted or refused, of the listeners that bind an address.
type ListenerStatus struct {
	// Accepted are the addresses of inbound listeners that the proxy has accepted, even if only in an older version;
	// sorted.
	Accepted []netip.AddrPort
	// Outbounds are the addresses of accepted outbound listeners, also sorted.
	Outbounds []netip.AddrPort
	// Refused are the listeners that the proxy has refused and has no older version of; sorted by address.
	Refused []RefusedListener
	// Since is when the newest of the reporting streams was opened.
	Since time.Time
}

// RefusedListener is a listener that a proxy has refused.
type RefusedListener struct {
	Address netip.AddrPort
	// Outbound is true for outbound traffic.
	Outbound bool
	NACK
}

func (s *ListenerStatus) equal(o *ListenerStatus) bool {
	return s != nil && s.Since.Equal(o.Since) && slices.Equal(s.Accepted, o.Accepted) &&
		slices.Equal(s.Outbounds, o.Outbounds) &&
		slices.EqualFunc(s.Refused, o.Refused, func(a, b RefusedListener) bool {
			return a.Name == b.Name && a.Reason == b.Reason
		})
}

// listenerStatus returns nil while the proxy's listeners are unknown: it has not requested listeners yet, or it uses
// the state of the world, which does not name listeners from an earlier stream, and has not ACKed any yet.
func (p *proxy) listenerStatus() *ListenerStatus {
	s := p.subscription(resource.Listener)
	if !s.requested || !p.desired.Known() || p.sotw && s.acked == "" {
		return nil
	}
	status := &ListenerStatus{}
	for _, r := range p.desired.Own.Of(resource.Listener) {
		at, accepted := r.Inbound, &status.Accepted
		if r.Outbound.IsValid() {
			at, accepted = r.Outbound, &status.Outbounds
		}
		if !at.IsValid() {
			continue
		}
		if s.has(r.Name) {
			*accepted = append(*accepted, at)
		} else if n := s.refused[r.Name].find(r.Version); n != nil {
			status.Refused = append(status.Refused, RefusedListener{at, r.Outbound.IsValid(), *n})
		}
	}
	return status
}

// mergeListeners merges the status of the streams of one proxy; nil if no stream has a status. A listener counts as
// accepted if any stream has accepted it. If two agents share a name, the serving one must not lose its traffic to the
// other, and a dead stream ends soon.
func mergeListeners(streams []*ListenerStatus) *ListenerStatus {
	var all *ListenerStatus
	for _, s := range streams {
		if s == nil {
			continue
		}
		if all == nil {
			all = &ListenerStatus{}
		}
		if s.Since.After(all.Since) {
			all.Since = s.Since
		}
		all.Accepted = append(all.Accepted, s.Accepted...)
		all.Outbounds = append(all.Outbounds, s.Outbounds...)
		all.Refused = append(all.Refused, s.Refused...)
	}
	if all == nil {
		return nil
	}
	for _, accepted := range []*[]netip.AddrPort{&all.Accepted, &all.Outbounds} {
		slices.SortFunc(*accepted, netip.AddrPort.Compare)
		*accepted = slices.Compact(*accepted)
	}
	slices.SortStableFunc(all.Refused, func(a, b RefusedListener) int { return a.Address.Compare(b.Address) })
	all.Refused = slices.CompactFunc(all.Refused, func(a, b RefusedListener) bool { return a.Address == b.Address })
	all.Refused = slices.DeleteFunc(all.Refused, func(r RefusedListener) bool {
		return slices.Contains(all.Accepted, r.Address) || slices.Contains(all.Outbounds, r.Address)
	})
	return all
}

// has reports whether the proxy subscribes to a name that it should have, and has ACKed some version of it or named it
// when it connected.
func (s *subscription) has(name string) bool {
	if !s.subscribes(name) {
		return false
	}
	for _, r := range s.inFlight {
		if m := r.mention(name); m != nil {
			return m.before.version != ""
		}
	}
	u, differs := s.pending[name]
	return !differs || u.version != ""
}

// reportListeners calls Options.Listeners with a changed status.
func (s *Server) reportListeners(id string) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()
	if n == nil || s.o.Listeners == nil {
		return
	}
	n.reportMu.Lock() // keeps the reports of one proxy in order
	defer n.reportMu.Unlock()
	s.mu.Lock()
	streams := slices.Clone(n.streams)
	s.mu.Unlock()
	var said []*ListenerStatus
	for _, st := range slices.Backward(streams) {
		st.mu.Lock()
		status := st.proxy.listenerStatus()
		st.mu.Unlock()
		if status != nil {
			status.Since = st.connected
		}
		said = append(said, status)
	}
	if now := mergeListeners(said); now != nil && !n.reported.equal(now) {
		n.reported = now
		s.o.Listeners(id, *now)
	}
}
