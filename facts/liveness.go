package facts

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Liveness says which guarded liveness probes of a pod fail. Agents report all of them in each session.
var Liveness = Kind[*peerv1.Liveness]{
	Name:  "liveness",
	Field: func(m *peerv1.Proxy) **peerv1.Liveness { return &m.Liveness },
	Check: func(b *Bounds, m *peerv1.Liveness) {
		const field = "proxy.liveness.said"
		said := m.GetSaid()
		b.Count(field, max(len(said.GetHeld()), len(said.GetPassing()), len(said.GetUnused())), agentv1.MaxReported)
		b.Text(field, said.GetPassing()...)
		b.Text(field, said.GetUnused()...)
		for _, h := range said.GetHeld() {
			b.Text(field, h.GetContainer(), h.GetReason(), h.GetGrant())
			if f := h.GetFailing(); f != nil && !f.IsValid() {
				b.Refuse(field+".failing", f, "must be a duration")
			}
		}
	},
	PerInstance: true,
	Same: func(a, b *peerv1.Liveness) bool {
		return agentv1.ReportedLiveness{Report: a.GetSaid()}.SameAs(agentv1.ReportedLiveness{Report: b.GetSaid()})
	},
	Tell: func(m *peerv1.Liveness, after time.Duration) *peerv1.Liveness {
		said := agentv1.ReportedLiveness{Report: m.GetSaid()}
		return &peerv1.Liveness{Order: m.GetOrder(), Said: said.AsOf(said.At.Add(after))}
	},
	Observe: func(o *mesh.Observation, m *peerv1.Liveness) { o.Held = m.GetSaid().AnyHeld() },
}
