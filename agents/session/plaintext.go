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

// plaintextEvery is the minimum time between two plaintext reports of an agent. Agents report once a minute, when a
// session or a drain begins, and on request.
const plaintextEvery = 5 * time.Second

// plaintextCounted records an agent's counts of traffic that STRICT would reject, at most once per plaintextEvery.
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

// plaintextTimeout bounds the wait for all agents, since a user waits for the answer.
const plaintextTimeout = 2 * time.Second

// AskPlaintext requests counts from the agents with a session here, and returns the proxies that answered.
func (s *Sessions) AskPlaintext(ctx context.Context, meshes []string) (answered []mesh.ID) {
	ctx, cancel := context.WithTimeout(ctx, plaintextTimeout)
	defer cancel()
	waiting := map[mesh.ID]<-chan struct{}{}
	s.mu.Lock()
	for id, sess := range s.sessions {
		if slices.Contains(meshes, sess.peer.Mesh) && sess.has(agentv1.FeatureAskPlaintext) {
			waiting[id] = sess.plaintextAsked.ask(sess,
				&agentv1.ControlMessage{Message: &agentv1.ControlMessage_AskPlaintext{AskPlaintext: &agentv1.AskPlaintext{}}})
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

// takeNewestPlaintext processes the waiting report, if there is one. inTurn drops it if a newer session has replaced
// this one.
func (s *Sessions) takeNewestPlaintext(sess *session) {
	if m, waits := sess.plaintext.take(); waits {
		_ = s.takePlaintext(sess, m)
	}
}
