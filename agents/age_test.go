package agents_test

import (
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/connectivity"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/meshview"
)

// moving is the grace within which agents must reconnect by themselves.
const moving = 5 * time.Second

// aging returns a control plane whose connections soon reach their maximum age, and an agent that has joined.
func aging(t *testing.T, grace time.Duration) (*harness, *agent) {
	t.Helper()
	h := newHarness(t, nil)
	h.age, h.grace = 4*time.Second, grace
	h.restart()
	h.fill("web-1")
	a := h.agent("web-1")
	a.instance, a.features = "process-1", []string{agentv1.FeatureQueries, agentv1.FeaturePong}
	a.mustJoin()
	a.connect(false)
	h.becomes("web", meshview.Ready, meshview.NoReason)
	return h, a
}

// move ends the session when the control plane asks for it, as agents do.
func (a *agent) move() {
	a.h.t.Helper()
	if !a.conn.WaitForStateChange(wait.Context(a.h.t), connectivity.Ready) {
		a.h.t.Fatal("the connection does not age")
	}
	if err := a.stream.CloseSend(); err != nil {
		a.h.t.Fatal(err)
	}
	if err := a.ending(); !errors.Is(err, io.EOF) {
		a.h.t.Fatalf("the session ended with %v, want EOF", err)
	}
}

// TestAgentMoves checks that an agent whose connection has reached its maximum age is not lost, and that its reconnect
// is not logged, whether it reconnects itself or not.
func TestAgentMoves(t *testing.T) {
	tests := map[string]struct {
		grace time.Duration
		end   func(*agent)
	}{
		"by itself":                {moving, (*agent).move},
		"when the connection ends": {500 * time.Millisecond, func(a *agent) { _ = a.ending() }}, // as earlier agents do
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := aging(t, tc.grace)
			for range 2 {
				tc.end(a)
				h.eventually("the session has ended", func() bool { return h.phase() != adminv1.AgentState_CONNECTED })
				if got := h.phase(); got != adminv1.AgentState_RECONNECTING {
					t.Errorf("state is %s, want RECONNECTING", got)
				}
				if n := h.metric("sonde_agents_lost", "default"); n != 0 {
					t.Errorf("sonde_agents_lost = %v, want 0", n)
				}
				h.becomes("web", meshview.Ready, meshview.NoReason)
				a.leave()
				a.connect(false)
				if got := h.phase(); got != adminv1.AgentState_CONNECTED {
					t.Errorf("state is %s, want CONNECTED", got)
				}
			}
			connected, disconnected := h.log.Lines(`msg="agent connected"`), h.log.Lines(`msg="agent disconnected"`)
			if len(connected) != 1 || len(disconnected) != 0 {
				t.Errorf("the log has lines about a moved connection: %q, %q", connected, disconnected)
			}
			other := h.agent("web-1") // another process is logged
			other.key, other.leaf, other.bundle, other.instance = a.key, a.leaf, a.bundle, "process-2"
			tc.end(a)
			h.eventually("the session has ended", func() bool { return h.phase() != adminv1.AgentState_CONNECTED })
			other.connect(false)
			if connected := h.log.Lines(`msg="agent connected"`); len(connected) != 2 {
				t.Errorf("the log has no line about another process: %q", connected)
			}
		})
	}
}

// TestQueryGoesOnWhileTheAgentMoves checks that an agent gets a query, reconnects, and then answers it.
func TestQueryGoesOnWhileTheAgentMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := aging(t, moving)
		q := h.query(t.Context(), "web-1")
		id := a.nextQuery()
		a.move()
		if err := a.answer(limited(t), &agentv1.AnswerPart{Query: id, Data: []byte("a: 1\n")}); err != nil {
			t.Errorf("Answer() = %v", err)
		}
		if err := q.end(t); err != nil || q.text.String() != "a: 1\n" {
			t.Errorf("Query() = %v with %q", err, &q.text)
		}
	})
}

// TestQueryOfAnAgentThatMovesAway checks that a caller learns that the agent has moved, instead of a timeout.
func TestQueryOfAnAgentThatMovesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := aging(t, moving)
		done := make(chan error, 1)
		go func() {
			done <- h.server.Query(wait.Context(t), mesh.MakeID("default", "web-1"), mesh.ViewStats, func([]byte) error { return nil })
		}()
		a.nextQuery()
		a.move()
		if err := <-done; err == nil || err.Error() != "rpc error: code = FailedPrecondition desc = the session with the agent has ended" {
			t.Errorf("Query() = %v", err)
		}
	})
}
