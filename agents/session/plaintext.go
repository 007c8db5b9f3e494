package session

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// plaintextEvery is how often what an agent has counted is taken. Agents say it once a minute, and once more when a session or
// a drain begins, and when they are asked.
const plaintextEvery = 5 * time.Second

// plaintextCounted records what an agent has counted that STRICT would refuse, soon if it has said that a moment ago.
func (s *Sessions) plaintextCounted(sess *session, m *agentv1.Plaintext) error {
	if err := agentv1.CheckPlaintext(m); err != nil {
		return status.Errorf(codes.InvalidArgument, "plaintext: %v", err)
	}
	asked := m.GetAsked() && sess.plaintextAsked.open()
	m.Asked = false // peers need the counts, not the reason for the report
	if sess.plaintext.add(m, plaintextEvery) {
		if err := s.takePlaintext(sess, m); err != nil {
			return err
		}
	}
	if asked {
		s.takeNewestPlaintext(sess)
		sess.plaintextAsked.answer()
	}
	return nil
}

// plaintextTimeout bounds the answers of all agents: a user waits for them.
const plaintextTimeout = 2 * time.Second

// AskPlaintext asks the agents with a session here for their counts, and returns the proxies that answered.
func (s *Sessions) AskPlaintext(ctx context.Context, meshes []string) (answered []mesh.ID) {
	ctx, cancel := context.WithTimeout(ctx, plaintextTimeout)
	defer cancel()
	waiting := map[mesh.ID]<-chan struct{}{}
	s.mu.Lock()
	for id, sess := range s.sessions {
		if slices.Contains(meshes, sess.peer.Mesh) && sess.has(agentv1.FeatureAskPlaintext) {
			waiting[id] = sess.plaintextAsked.ask(sess, &agentv1.ControlMessage{Message: &agentv1.ControlMessage_AskPlaintext{AskPlaintext: &agentv1.AskPlaintext{}}})
		}
	}
	s.mu.Unlock()
	for id, answer := range waiting {
		if answeredIn(ctx, answer) {
			answered = append(answered, id)
		}
	}
	return answered
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
