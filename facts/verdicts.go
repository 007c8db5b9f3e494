package facts

import (
	"fmt"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Verdicts are the verdicts of a proxy's probes. Agents report all of them in each session. They affect no endpoint.
var Verdicts = Kind[*peerv1.Verdicts]{
	Name:  "verdicts",
	Field: func(m *peerv1.Proxy) **peerv1.Verdicts { return &m.Verdicts },
	Check: func(b *Bounds, m *peerv1.Verdicts) {
		const field = "proxy.verdicts.said"
		if err := agentv1.CheckVerdicts(m.GetSaid()); err != nil {
			b.Refuse(field, err, "must be as an agent reports it")
		}
		for _, p := range m.GetSaid().GetProbes() {
			if n := len(p.GetReason()); n > agentv1.MaxVerdictReason {
				b.Refuse(field+".reason", fmt.Sprintf("%d bytes", n), fmt.Sprintf("must have at most %d", agentv1.MaxVerdictReason))
			}
		}
	},
	PerInstance: true,
	Same:        func(a, b *peerv1.Verdicts) bool { return a.GetSaid().SameAs(b.GetSaid()) },
	Tell: func(m *peerv1.Verdicts, after time.Duration) *peerv1.Verdicts {
		whole := func(reason string) string { return reason } // it was shortened when it arrived
		return &peerv1.Verdicts{Order: m.GetOrder(), Said: m.GetSaid().AsOf(after, whole)}
	},
}
