package facts

import (
	"maps"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Listeners are the listeners that Envoy has accepted, and the reasons of rejected ones, ordered by ADS stream.
var Listeners = Kind[*peerv1.Listeners]{
	Name:  "listeners",
	Field: func(m *peerv1.Proxy) **peerv1.Listeners { return &m.Listeners },
	Check: func(b *Bounds, m *peerv1.Listeners) {
		b.addresses("proxy.listeners.accepted", m.GetAccepted())
		b.reasons("proxy.listeners.refused", m.GetRefused())
		b.addresses("proxy.listeners.outbounds.accepted", m.GetOutbounds().GetAccepted())
	},
	Same: func(a, b *peerv1.Listeners) bool {
		return slices.Equal(a.GetAccepted(), b.GetAccepted()) && maps.Equal(a.GetRefused(), b.GetRefused()) &&
			(a.GetOutbounds() == nil) == (b.GetOutbounds() == nil) &&
			slices.Equal(a.GetOutbounds().GetAccepted(), b.GetOutbounds().GetAccepted())
	},
	Tell: func(m *peerv1.Listeners, _ time.Duration) *peerv1.Listeners {
		return &peerv1.Listeners{Order: m.GetOrder(), Accepted: m.GetAccepted(), Refused: cutReasons(m.GetRefused()),
			Outbounds: m.GetOutbounds()}
	},
	Observe: func(o *mesh.Observation, m *peerv1.Listeners) {
		o.ListenersKnown, o.Listeners = m != nil, addressesOf(m.GetAccepted(), o.Listeners)
		o.OutboundsKnown, o.Outbounds = m.GetOutbounds() != nil, addressesOf(m.GetOutbounds().GetAccepted(), o.Outbounds)
	},
}
