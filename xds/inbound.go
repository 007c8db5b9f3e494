package xds

import (
	"net/netip"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// InboundStatus says which listeners for inbound traffic a proxy has, of those that it should have.
type InboundStatus struct {
	// Accepted are the addresses of the listeners that the proxy has accepted, if only in an older version; sorted.
	Accepted []netip.AddrPort
	// Refused are the listeners that it has refused and has no older version of; sorted by address.
	Refused []RefusedListener
	// Since is when the newest of its streams that say so was opened.
	Since time.Time
}

// RefusedListener is a listener that a proxy has refused.
type RefusedListener struct {
	Address netip.AddrPort
	NACK
}

func (s *InboundStatus) equal(o *InboundStatus) bool {
	return s != nil && s.Since.Equal(o.Since) && slices.Equal(s.Accepted, o.Accepted) &&
		slices.EqualFunc(s.Refused, o.Refused, func(a, b RefusedListener) bool { return a.Name == b.Name && a.Reason == b.Reason })
}

// inboundStatus returns nil while it is not known what the proxy has: it has not asked for listeners yet, or it asks for the
// state of the world, which does not say what it has from a stream before, and has not ACKed any yet.
func (p *proxy) inboundStatus() *InboundStatus {
	s := p.subscription(resource.Listener)
	if !s.requested || !p.desired.Known() || p.sotw && s.acked == "" {
		return nil
	}
	status := &InboundStatus{}
	for _, r := range p.desired.Own.Of(resource.Listener) {
		if !r.Inbound.IsValid() {
			continue
		}
		if s.has(r.Name) {
			status.Accepted = append(status.Accepted, r.Inbound)
		} else if n := s.refused[r.Name].find(r.Version); n != nil {
			status.Refused = append(status.Refused, RefusedListener{r.Inbound, *n})
		}
	}
	return status
}

// mergeInbound returns what streams of one proxy say together; nil if they say nothing. A listener that one of them has accepted
// counts: if two agents have one name, the one that serves must not lose its traffic to the other, and a stream that is dead
// ends soon.
func mergeInbound(streams []*InboundStatus) *InboundStatus {
	var all *InboundStatus
	for _, s := range streams {
		if s == nil {
			continue
		}
		if all == nil {
			all = &InboundStatus{}
		}
		if s.Since.After(all.Since) {
			all.Since = s.Since
		}
		all.Accepted = append(all.Accepted, s.Accepted...)
		all.Refused = append(all.Refused, s.Refused...)
	}
	if all == nil {
		return nil
	}
	slices.SortFunc(all.Accepted, netip.AddrPort.Compare)
	all.Accepted = slices.Compact(all.Accepted)
	slices.SortStableFunc(all.Refused, func(a, b RefusedListener) int { return a.Address.Compare(b.Address) })
	all.Refused = slices.CompactFunc(all.Refused, func(a, b RefusedListener) bool { return a.Address == b.Address })
	all.Refused = slices.DeleteFunc(all.Refused, func(r RefusedListener) bool {
		_, accepted := slices.BinarySearchFunc(all.Accepted, r.Address, netip.AddrPort.Compare)
		return accepted
	})
	return all
}

// has reports whether the proxy subscribes to a name that it should have, and has ACKed some version of it, or named it when
// it connected.
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

// reportInbound tells Options.Inbound what a proxy has, if that differs from what it was told before.
func (s *Server) reportInbound(id string) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()
	if n == nil || s.o.Inbound == nil {
		return
	}
	n.reportMu.Lock() // reports of one proxy have an order
	defer n.reportMu.Unlock()
	s.mu.Lock()
	streams := slices.Clone(n.streams)
	s.mu.Unlock()
	var said []*InboundStatus
	for _, st := range slices.Backward(streams) {
		st.mu.Lock()
		status := st.proxy.inboundStatus()
		st.mu.Unlock()
		if status != nil {
			status.Since = st.connected
		}
		said = append(said, status)
	}
	if now := mergeInbound(said); now != nil && !n.reported.equal(now) {
		n.reported = now
		s.o.Inbound(id, *now)
	}
}
