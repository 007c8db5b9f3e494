package session

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// plaintextEvery is how often what an agent has counted is taken. Agents say it once a minute, and once more when a session or a drain begins.
const plaintextEvery = 5 * time.Second

// plaintextCounted records what an agent has counted that STRICT would refuse, soon if it has said that a moment ago.
func (s *Sessions) plaintextCounted(sess *session, m *agentv1.Plaintext) error {
	if err := agentv1.CheckPlaintext(m); err != nil {
		return status.Errorf(codes.InvalidArgument, "plaintext: %v", err)
	}
	if sess.plaintext.add(m, plaintextEvery) {
		return s.takePlaintext(sess, m)
	}
	return nil
}

func (s *Sessions) takePlaintext(sess *session, m *agentv1.Plaintext) error {
	return s.inTurn(sess, func() error {
		s.o.Observed.Plaintext(sess.peer.Subject, sess.order, sess.rival.process, m)
		return nil
	})
}

// takeNewestPlaintext takes what waits, if anything does, and a newer session has not had its say: that has ended this one then.
func (s *Sessions) takeNewestPlaintext(sess *session) {
	if m, waits := sess.plaintext.take(); waits {
		_ = s.takePlaintext(sess, m)
	}
}
