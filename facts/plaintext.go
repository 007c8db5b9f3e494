package facts

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Plaintext is the traffic that mode STRICT would reject. Agents report all of it in each session, and on request. Two
// reports always differ, since their times are relative to the report.
var Plaintext = Kind[*peerv1.Plaintext]{
	Name:  "plaintext",
	Field: func(m *peerv1.Proxy) **peerv1.Plaintext { return &m.Plaintext },
	Check: func(b *Bounds, m *peerv1.Plaintext) {
		b.Text("proxy.plaintext.process", m.GetProcess())
		if err := agentv1.CheckPlaintext(m.GetSaid()); err != nil {
			b.Refuse("proxy.plaintext.said", err, "must be as an agent reports it")
		}
	},
	PerInstance: true,
	Tell: func(m *peerv1.Plaintext, after time.Duration) *peerv1.Plaintext {
		return &peerv1.Plaintext{Order: m.GetOrder(), Process: m.GetProcess(), Said: aged(m.GetSaid(), after)}
	},
}

// aged returns m as the agent would report it now, when by has passed.
func aged(m *agentv1.Plaintext, by time.Duration) *agentv1.Plaintext {
	ago := func(d *durationpb.Duration) *durationpb.Duration {
		return durationpb.New(min(d.AsDuration()+by, agentv1.MaxAgo))
	}
	older := func(t *agentv1.PlaintextTally) {
		if t != nil {
			t.First, t.Last = ago(t.GetFirst()), ago(t.GetLast())
		}
	}
	m = proto.CloneOf(m)
	for _, in := range m.GetInbounds() {
		older(in.GetOthers())
		older(in.GetProbes())
		for _, source := range in.GetSources() {
			older(source.GetTally())
		}
	}
	return m
}
