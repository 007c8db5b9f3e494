package session

import (
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

// TestUnsentQueryIsAskedAgain ends a session by its age before a query is sent: the next session sends it once.
func TestUnsentQueryIsAskedAgain(t *testing.T) {
	s, subject := fuzzSessions(t)
	open := func() *session {
		t.Helper()
		peer := identity.Peer{Subject: subject, NotAfter: time.Now().Add(time.Hour)}
		sess := s.newSession(peer, &agentv1.Hello{Features: []string{agentv1.FeatureQueries}, Instance: "a"}, fuzzStream{ctx: t.Context()})
		if _, err := s.openSession(sess); err != nil {
			t.Fatal(err)
		}
		return sess
	}
	first := open()
	q := &query{id: "q-1", proxy: subject.ID(), ended: make(chan error, 1), gone: make(chan struct{})}
	if err := s.ask(q, mesh.ViewStats); err != nil {
		t.Fatal(err)
	}
	first.rival.pong.ask(first, &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Ping{}}) // only for this session
	s.mu.Lock()
	delete(s.sessions, subject.ID())
	s.keepUnsent(first)
	s.mu.Unlock()
	for n, want := range []int{1, 0} {
		sess := open()
		if len(sess.outbox) != want {
			t.Fatalf("session %d has %d messages to send, want %d", n, len(sess.outbox), want)
		}
		if want == 1 {
			if m := <-sess.outbox; m.GetQuery().GetId() != "q-1" {
				t.Errorf("session %d sends %v, want the query", n, m)
			}
		}
	}
}
