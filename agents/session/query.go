package session

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits of queries.
const (
	maxQueries    = 8 // at once, of all proxies
	maxAnswerTime = 2 * time.Minute
)

var errSessionEnded = status.Error(codes.FailedPrecondition, "the session with the agent has ended")

// query is a query to a proxy's Envoy. A caller waits for its answer.
type query struct {
	id    string
	proxy mesh.ID
	parts chan []byte
	ended chan error    // receives one error, nil for a complete answer
	gone  chan struct{} // closed when the caller stops waiting
	// Guarded by Sessions.mu: whether the answer has begun, and the message if a session ended before sending it.
	begun  bool
	unsent *agentv1.ControlMessage
}

// Query sends a query to a proxy's Envoy. It passes the parts of the answer to take, in order, until the answer is
// complete or ctx ends. Errors are gRPC statuses.
func (s *Sessions) Query(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
	q := &query{id: rand.Text(), proxy: proxy, parts: make(chan []byte), ended: make(chan error, 1),
		gone: make(chan struct{})}
	if err := s.ask(q, view); err != nil {
		return err
	}
	defer s.forgetQuery(q)
	for {
		select {
		case part := <-q.parts:
			if err := take(part); err != nil {
				return err
			}
		case err := <-q.ended:
			return err
		case <-s.stopping:
			return errStopping
		case <-ctx.Done():
			if !s.Connected(proxy) {
				return errSessionEnded
			}
			return status.Errorf(codes.FailedPrecondition, "the agent of %s has not answered in time", proxy)
		}
	}
}

// ask passes the query to the session of its proxy.
func (s *Sessions) ask(q *query, view mesh.EnvoyView) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[q.proxy]
	switch {
	case sess == nil:
		return status.Errorf(codes.FailedPrecondition,
			"the agent of %s has no session with this replica of the control plane", q.proxy)
	case !sess.has(agentv1.FeatureQueries):
		return status.Errorf(codes.FailedPrecondition,
			"the agent of %s has version %q, which does not support queries to its Envoy", q.proxy, sess.version.GetSonde())
	case len(s.queries) >= maxQueries:
		return status.Errorf(codes.ResourceExhausted, "%d queries to Envoys are running, which is the limit: try again",
			len(s.queries))
	}
	for _, open := range s.queries {
		if open.proxy == q.proxy { // an agent answers one query at a time
			return status.Errorf(codes.ResourceExhausted, "another query to the Envoy of %s is running: try again", q.proxy)
		}
	}
	message := &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Query{Query: &agentv1.Query{Id: q.id,
		View: string(view)}}}
	if !sess.send(message) { // an abandoned query still waits in the outbox
		return status.Errorf(codes.ResourceExhausted, "another query to the Envoy of %s is running: try again", q.proxy)
	}
	s.queries[q.id] = q
	return nil
}

// endQueries ends the queries to a proxy whose session has ended. The caller holds mu.
func (s *Sessions) endQueries(proxy mesh.ID) {
	for _, q := range s.queries {
		if q.proxy == proxy {
			q.end(errSessionEnded)
		}
	}
}

// endUnsent ends the queries that keepUnsent kept for an agent that has moved to another replica. The caller holds mu.
func (s *Sessions) endUnsent(proxy mesh.ID) {
	for _, q := range s.queries {
		if q.proxy == proxy && q.unsent != nil {
			q.end(errSessionEnded)
		}
	}
}

// keepUnsent keeps the queries that a session has not sent, for the next session. The agent answers the others, which
// it has received, on the same connection. The caller holds mu.
func (s *Sessions) keepUnsent(sess *session) {
	for {
		select {
		case m := <-sess.outbox:
			if q := s.queries[m.GetQuery().GetId()]; q != nil {
				q.unsent = m
			}
		default:
			return
		}
	}
}

// askMoved sends the queries that keepUnsent kept to the new session of the agent. The caller holds mu.
func (s *Sessions) askMoved(sess *session) {
	for _, q := range s.queries {
		if q.proxy == sess.peer.ID() && q.unsent != nil && sess.send(q.unsent) {
			q.unsent = nil
		}
	}
}

// end ends a query, unless it has ended.
func (q *query) end(err error) {
	select {
	case q.ended <- err:
	default:
	}
}

func (s *Sessions) forgetQuery(q *query) {
	s.mu.Lock()
	delete(s.queries, q.id)
	s.mu.Unlock()
	close(q.gone)
}

// begin returns the query that a proxy begins to answer, nil if no caller waits for it or an answer has begun already.
func (s *Sessions) begin(id string, proxy mesh.ID) *query {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queries[id]
	if q == nil || q.proxy != proxy || q.begun {
		return nil
	}
	q.begun = true
	return q
}

// Answer implements agentv1.AgentServiceServer.
func (s *Sessions) Answer(stream agentv1.AgentService_AnswerServer) error {
	caller, err := s.caller(stream.Context())
	if err != nil {
		return err
	}
	if deadline, ok := stream.Context().Deadline(); !ok || time.Until(deadline) > maxAnswerTime {
		return status.Errorf(codes.InvalidArgument, "an answer needs a deadline within %s", maxAnswerTime)
	}
	part, err := stream.Recv()
	if err != nil {
		return ended(err)
	}
	q := s.begin(part.GetQuery(), caller.ID())
	if q == nil {
		return status.Error(codes.NotFound, "no caller waits for an answer to this query")
	}
	err = q.pass(stream, part, s.o.Limits.Answer)
	q.end(err)
	if err != nil {
		return err
	}
	return stream.SendAndClose(&agentv1.AnswerReceipt{})
}

// pass passes the parts of an answer to the caller, from the first to the last, at most most bytes in all.
func (q *query) pass(stream agentv1.AgentService_AnswerServer, part *agentv1.AnswerPart, most int) (err error) {
	for size := 0; !errors.Is(err, io.EOF); part, err = stream.Recv() {
		if err != nil {
			return status.Errorf(codes.FailedPrecondition, "the agent of %s aborted its answer: %s", q.proxy,
				status.Convert(err).Message())
		}
		if text := part.GetError(); text != "" {
			return status.Errorf(codes.FailedPrecondition, "the agent of %s: %s", q.proxy, call.Shorten(text))
		}
		if size += len(part.GetData()); size > most {
			return status.Errorf(codes.ResourceExhausted, "the answer of the Envoy of %s has more than %d MiB",
				q.proxy, most>>20)
		}
		select {
		case q.parts <- part.GetData():
		case <-q.gone:
			return status.Error(codes.NotFound, "the caller of this query has stopped waiting")
		}
	}
	return nil
}
