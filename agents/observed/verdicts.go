package observed

import (
	"time"

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
