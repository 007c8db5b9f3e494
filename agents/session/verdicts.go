package session

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/facts"
)

// verdictsEvery is the minimum time between two reports of verdicts of an agent. Agents keep to it.
const verdictsEvery = time.Second

// reportedVerdicts is a report with the time of its receipt, to which its ages are relative.
type reportedVerdicts struct {
	report *agentv1.Verdicts
	at     time.Time
}

// verdictsChanged records an agent's verdicts of probes, at most once per verdictsEvery.
func (s *Sessions) verdictsChanged(sess *session, m *agentv1.Verdicts) error {
	if err := agentv1.CheckVerdicts(m); err != nil {
		return status.Errorf(codes.InvalidArgument, "verdicts: %v", err)
	}
	if reported := (reportedVerdicts{m, s.o.Now()}); sess.verdicts.add(reported, verdictsEvery) {
		return s.takeVerdicts(sess, reported)
	}
	return nil
}

// takeNewestVerdicts processes the waiting report, if there is one. inTurn drops it if a newer session has replaced
// this one.
func (s *Sessions) takeNewestVerdicts(sess *session) {
	if reported, waits := sess.verdicts.take(); waits {
		_ = s.takeVerdicts(sess, reported)
	}
}

func (s *Sessions) takeVerdicts(sess *session, reported reportedVerdicts) error {
	return s.inTurn(sess, func() error {
		s.o.Observed.Verdicts(sess.peer.Subject, sess.order, reported.report, reported.at)
		return nil
	})
}

// Order returns the order of the open session of a proxy, with this replica or another one, and false without one.
func (s *Sessions) Order(id mesh.ID) (facts.Order, bool) {
	there, open := s.elsewhere(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		return sess.order, true
	}
	return facts.OrderOf(there.Proxy.GetSession().GetOrder()), open
}
