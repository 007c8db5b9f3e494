package facts

import peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"

// Session is the session of the agent. It has no register: agents/session keeps the sessions.
var Session = Kind[*peerv1.Session]{
	Name:  "session",
	Field: func(m *peerv1.Proxy) **peerv1.Session { return &m.Session },
	Check: func(b *Bounds, m *peerv1.Session) {
		b.Time("proxy.session.since", m.GetSince())
		b.Time("proxy.session.ended", m.GetEnded())
		b.Text("proxy.session", m.GetProcess(), m.GetAddress(), m.GetVersion(), m.GetEnvoyVersion(), m.GetEnvoyDown(),
			m.GetBundleId(), m.GetServingCaId())
		b.Count("proxy.session.features", len(m.GetFeatures()), maxFeatures)
		b.Text("proxy.session.features", m.GetFeatures()...)
	},
}
