package observed

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Verdicts records an agent's verdicts of probes, with shortened reasons and without fields of later versions: agents
// do not limit their length.
func (s *State) Verdicts(who identity.Subject, session facts.Order, m *agentv1.Verdicts, at time.Time) {
	said := m.AsOf(0, func(reason string) string { return cut.Text(reason, agentv1.MaxVerdictReason) })
	if before := s.facts.Verdicts.Newest(who.ID()); before.Known() && before.Instance == who.Instance {
		keepTimes(said, at, before.Said.GetSaid(), before.At)
	}
	s.facts.Verdicts.Say(who.ID(), facts.Fact[*peerv1.Verdicts]{
		Said: &peerv1.Verdicts{Order: session.Proto(), Said: said}, At: at, Instance: who.Instance,
	})
}

// VerdictsOf returns the verdicts of a proxy's probes that its agent has reported in a session, and the time to which
// their ages are relative. Without a report in that session, it returns nil: earlier ones may be wrong by now.
func (s *State) VerdictsOf(id mesh.ID, session facts.Order) (*agentv1.Verdicts, time.Time) {
	newest := s.facts.Verdicts.Newest(id)
	if !newest.Known() || newest.Order() != session {
		return nil, time.Time{}
	}
	return newest.Said.GetSaid(), newest.At
}

// sameChange is how much the time of the same change may differ between two reports, since reports take different times
// to arrive.
const sameChange = 2 * time.Second

// keepTimes keeps the times of changes that an earlier report had, which would otherwise differ by a second from report
// to report.
func keepTimes(m *agentv1.Verdicts, at time.Time, before *agentv1.Verdicts, reported time.Time) {
	type key struct{ container, inbound, probe string }
	known := make(map[key]*agentv1.ProbeVerdicts, len(before.GetProbes()))
	for _, p := range before.GetProbes() {
		known[key{p.GetContainer(), p.GetInbound(), p.GetProbe()}] = p
	}
	for _, p := range m.GetProbes() {
		was, next := known[key{p.GetContainer(), p.GetInbound(), p.GetProbe()}], time.Duration(0)
		for i, c := range slices.Backward(p.GetChanges()) {
			ago := c.GetAgo().AsDuration()
			if same := changeOf(was, numberOf(p, i)); same != nil && same.GetVerdict() == c.GetVerdict() {
				if kept := at.Sub(reported) + same.GetAgo().AsDuration(); (kept - ago).Abs() <= sameChange {
					ago = kept
				}
			}
			next = min(max(ago, next), agentv1.MaxAgo) // the newest change comes last
			c.Ago = durationpb.New(next)
		}
	}
}

// numberOf returns the number of the listed change i: how many changes preceded it since the agent started.
func numberOf(p *agentv1.ProbeVerdicts, i int) int {
	return int(p.GetTotal()) - len(p.GetChanges()) + i
}

// changeOf returns a listed change by its number, nil if it is not listed.
func changeOf(p *agentv1.ProbeVerdicts, number int) *agentv1.VerdictChange {
	if i := number - numberOf(p, 0); i >= 0 && i < len(p.GetChanges()) {
		return p.GetChanges()[i]
	}
	return nil
}
