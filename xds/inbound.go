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
	Refused []NACK
}

func (s *InboundStatus) equal(o *InboundStatus) bool {
	return s != nil && slices.Equal(s.Accepted, o.Accepted) &&
		slices.EqualFunc(s.Refused, o.Refused, func(a, b NACK) bool { return a.Name == b.Name && a.Reason == b.Reason })
}

// inboundStatus returns nil while it is not known what the client has: it has not asked for listeners yet, or it asks for the
// state of the world, which does not say what it has from a stream before, and has not answered yet.
func (c *client) inboundStatus() *InboundStatus {
	t := c.topic(resource.Listener)
	if !t.requested || !c.desired.Known() || c.sotw && !t.answered {
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
			s.Refused = append(s.Refused, *n)
		}
	}
	slices.SortFunc(s.Accepted, netip.AddrPort.Compare)
	return s
}

// has reports whether the client has ACKed some version of a name that it subscribes to and should have, or named it when it
// connected, and has not lost it since.
func (t *topic) has(name string) bool {
	for _, r := range t.inFlight {
		if i := r.indexOf(name); i >= 0 {
			return r.before[i].version != ""
		}
	}
	g, differs := t.gaps[name]
	return !differs || g.version != ""
}

// reportInbound tells Options.Inbound what the proxy has, if that differs from what it was told before. Only the receiving
// goroutine calls it, so that reports have an order. A proxy's newest stream reports alone.
func (st *stream) reportInbound() {
	if st.server.o.Inbound == nil || !st.server.isNewest(st) {
		return
	}
	st.mu.Lock()
	now := st.client.inboundStatus()
	st.mu.Unlock()
	if now == nil || st.reported.equal(now) {
		return
	}
	st.reported = now
	st.server.o.Inbound(st.node, *now)
}
