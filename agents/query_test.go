package agents_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// asking is a running Query.
type asking struct {
	text  bytes.Buffer
	begun chan struct{} // closed by the first part
	done  chan error
}

func (h *harness) query(ctx context.Context, proxy string) *asking {
	q := &asking{begun: make(chan struct{}), done: make(chan error, 1)}
	begin := sync.OnceFunc(func() { close(q.begun) })
	go func() {
		q.done <- h.server.Query(ctx, mesh.MakeID("default", proxy), mesh.ViewStats, func(part []byte) error {
			begin()
			_, err := q.text.Write(part)
			return err
		})
	}()
	return q
}

// end returns the result of Query.
func (q *asking) end(t *testing.T) error {
	t.Helper()
	return wait.Receive(t, "the end of the query", q.done)
}

// limited returns a context whose deadline is short enough for the method Answer.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// answer calls Answer with these parts, and returns its error.
func (a *agent) answer(ctx context.Context, parts ...*agentv1.AnswerPart) error {
	conn := a.dial()
	defer func() { _ = conn.Close() }()
	stream, err := agentv1.NewAgentServiceClient(conn).Answer(ctx)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if stream.Send(p) != nil {
			break // CloseAndRecv returns the reason
		}
	}
	_, err = stream.CloseAndRecv()
	return err
}

// nextQuery returns the query that the agent receives.
func (a *agent) nextQuery() string {
	a.h.t.Helper()
	for {
		if q := a.receive().GetQuery(); q != nil {
			if q.GetView() != string(mesh.ViewStats) {
				a.h.t.Errorf("queried for %q", q.GetView())
			}
			return q.GetId()
		}
	}
}

func TestQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.joined("web-1")
		for range 2 { // the second query does not depend on the first
			q := h.query(t.Context(), "web-1")
			err := a.answer(limited(t), &agentv1.AnswerPart{Query: a.nextQuery(), Data: []byte("a: 1\n")}, &agentv1.AnswerPart{Data: []byte("b: 2\n")})
			if err != nil {
				t.Errorf("Answer() = %v", err)
			}
			if err := q.end(t); err != nil || q.text.String() != "a: 1\nb: 2\n" {
				t.Errorf("Query() = %v with %q", err, &q.text)
			}
		}
	})
}

// part returns the first part of an answer, followed by more.
func part(id string, more ...*agentv1.AnswerPart) []*agentv1.AnswerPart {
	return append([]*agentv1.AnswerPart{{Query: id, Data: []byte("a")}}, more...)
}

func TestQueryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, func(o *agents.Options) { o.SetLimits(agents.Limits{MaxAnswer: 2 << 20}) })
		h.fill("web-1")
		a := h.joined("web-1")
		limited := limited(t)
		big := make([]*agentv1.AnswerPart, 2)
		for i := range big {
			big[i] = &agentv1.AnswerPart{Data: make([]byte, 1<<20)}
		}
		for name, tc := range map[string]struct {
			answer func(id string, begun <-chan struct{}) error
			want   string     // of Query
			code   codes.Code // of Answer
		}{
			"Envoy says nothing": {func(id string, _ <-chan struct{}) error {
				return a.answer(limited, &agentv1.AnswerPart{Query: id, Error: "call envoy: EOF"})
			},
				"the agent of default/web-1: call envoy: EOF", codes.FailedPrecondition},
			"Envoy stops": {func(id string, _ <-chan struct{}) error {
				return a.answer(limited, part(id, &agentv1.AnswerPart{Error: "read: EOF"})...)
			},
				"the agent of default/web-1: read: EOF", codes.FailedPrecondition},
			"too long": {func(id string, _ <-chan struct{}) error { return a.answer(limited, part(id, big...)...) },
				"the answer of the Envoy of default/web-1 has more than 2 MiB", codes.ResourceExhausted},
			"the agent breaks off": {func(id string, begun <-chan struct{}) error {
				ctx, cancel := context.WithCancel(limited)
				defer cancel()
				conn := a.dial()
				defer conn.Close() //nolint:errcheck // the test has broken the connection
				stream, err := agentv1.NewAgentServiceClient(conn).Answer(ctx)
				if err != nil {
					return err
				}
				if err := stream.Send(part(id)[0]); err != nil {
					return err
				}
				<-begun
				cancel()
				return status.Error(codes.Canceled, "")
			}, "the agent of default/web-1 aborted its answer: context canceled", codes.Canceled},
		} {
			q := h.query(t.Context(), "web-1")
			if err := tc.answer(a.nextQuery(), q.begun); status.Code(err) != tc.code {
				t.Errorf("%s: Answer() = %v, want %v", name, err, tc.code)
			}
			if err := q.end(t); status.Code(err) == codes.Unknown || status.Convert(err).Message() != tc.want {
				t.Errorf("%s: Query() = %v, want %q", name, err, tc.want)
			}
		}
	})
}

func TestAnswersThatAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		a, other := h.joined("web-1"), h.joined("web-2")
		limited := limited(t)
		q := h.query(t.Context(), "web-1")
		id := a.nextQuery()
		for name, answer := range map[string]func() error{
			"of another proxy":      func() error { return other.answer(limited, part(id)...) },
			"to an unknown query":   func() error { return a.answer(limited, part("0")...) },
			"without a query":       func() error { return a.answer(limited, part("")...) },
			"without a deadline":    func() error { return a.answer(t.Context(), part(id)...) },
			"without a certificate": func() error { return (&agent{h: h}).answer(limited, part(id)...) },
		} {
			if err := answer(); err == nil {
				t.Errorf("an answer %s is accepted", name)
			}
		}
		if err := a.answer(limited, part(id)...); err != nil {
			t.Errorf("the right answer: %v", err)
		}
		if err := q.end(t); err != nil || q.text.String() != "a" {
			t.Errorf("Query() = %v with %q", err, &q.text)
		}
		if err := a.answer(limited, part(id)...); status.Code(err) != codes.NotFound {
			t.Errorf("the same answer again: %v, want NotFound", err)
		}
	})
}

func TestQueryThatNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		a := h.joined("web-1")
		ctx, cancel := context.WithCancel(t.Context())
		q := h.query(ctx, "web-1")
		id := a.nextQuery()
		cancel()
		if err := q.end(t); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has not answered in time") {
			t.Errorf("Query() = %v", err)
		}
		if err := a.answer(limited(t), &agentv1.AnswerPart{Query: id, Data: []byte("late")}); status.Code(err) != codes.NotFound {
			t.Errorf("a late answer: %v, want NotFound", err)
		}
		if err := h.query(t.Context(), "web-2").end(t); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has no session") {
			t.Errorf("without a session: %v", err)
		}
		old := h.agent("web-2")
		old.mustJoin()
		old.open()
		old.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{Version: &agentv1.Version{Sonde: "0.0.1"}, InUse: old.inUse()}}})
		old.receive()
		if err := h.query(t.Context(), "web-2").end(t); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `has version "0.0.1", which does not support queries`) {
			t.Errorf("with an old agent: %v", err)
		}
	})
}

// TestQueriesAtOnce queries one Envoy twice, and ends the session of its agent.
func TestQueriesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.joined("web-1")
		first := h.query(t.Context(), "web-1")
		a.nextQuery()
		if err := h.query(t.Context(), "web-1").end(t); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the second = %v, want ResourceExhausted", err)
		}
		a.leave()
		if err := first.end(t); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the session with the agent has ended") {
			t.Errorf("the first = %v", err)
		}
	})
}
