package xds

import (
	"net/netip"
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// InboundStatus says which listeners for inbound traffic a proxy has, of those that it should have.
type InboundStatus struct {
	// Accepted are the addresses of the listeners that the proxy has accepted, if only in an older version; sorted.
	Accepted []netip.AddrPort
	// Refused are the listeners that it has refused and has no older version of; sorted by name.
	Refused []RefusedListener
}

// RefusedListener is a listener that a proxy has refused.
type RefusedListener struct {
	Address netip.AddrPort
	NACK
}

func (s *InboundStatus) equal(o *InboundStatus) bool {
	return s != nil && slices.Equal(s.Accepted, o.Accepted) &&
		slices.EqualFunc(s.Refused, o.Refused, func(a, b RefusedListener) bool { return a.Name == b.Name && a.Reason == b.Reason })
}

// inboundStatus returns nil while it is not known what the client has: it has not asked for listeners yet, or it asks for the
// state of the world, which does not say what it has from a stream before, and has not ACKed any yet.
func (c *client) inboundStatus() *InboundStatus {
	t := c.topic(resource.Listener)
	if !t.requested || !c.desired.Known() || c.sotw && t.acked == "" {
		return nil
	}
	s := &InboundStatus{}
	for _, r := range c.desired.Own.Of(resource.Listener) {
		if !r.Inbound.IsValid() {
			continue
		}
		if t.has(r.Name) {
			s.Accepted = append(s.Accepted, r.Inbound)
		} else if n := t.refused[r.Name].find(r.Version); n != nil {
			s.Refused = append(s.Refused, RefusedListener{r.Inbound, *n})
		}
	}
	slices.SortFunc(s.Accepted, netip.AddrPort.Compare)
	return s
}

// has reports whether the client subscribes to a name that it should have, and has ACKed some version of it, or named it when
// it connected.
func (t *topic) has(name string) bool {
	if !t.subscribes(name) {
		return false
	}
	for _, r := range t.inFlight {
		if i := r.indexOf(name); i >= 0 {
			return r.before[i].version != ""
		}
	}
	g, differs := t.gaps[name]
	return !differs || g.version != ""
}

// reportInbound tells Options.Inbound what a proxy has, if that differs from what it was told before. Of several streams of
// the proxy the newest one that says something counts: the others may be dead without the server knowing it.
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
	for _, st := range slices.Backward(streams) {
		st.mu.Lock()
		now := st.client.inboundStatus()
		st.mu.Unlock()
		if now == nil {
			continue
		}
		if !n.reported.equal(now) {
			n.reported = now
			s.o.Inbound(id, *now)
		}
		return
	}
}
