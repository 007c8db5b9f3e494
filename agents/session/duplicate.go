package session

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// pongTimeout is how long an agent that has a session may take to show that it lives: longer than a busy one needs, and short for one that was
// started again after its host has died.
const pongTimeout = 3 * time.Second

// rival is what a session does when another process of its proxy comes.
type rival struct {
	process string // Hello's instance, "" of an agent that has none
	pong    question
}

// lives asks the agent for a Pong, and reports whether it has come in time.
func (sess *session) lives(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, pongTimeout)
	defer cancel()
	select {
	case <-sess.rival.pong.ask(sess, &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Ping{Ping: &agentv1.Ping{}}}):
		return true
	case <-ctx.Done():
		return false
	}
}

// CheckDuplicate returns an error if another process has the session of the proxy, and lives: two would take it from each other for ever. One that drains
// gives way. Agents that do not say which process they are take over, as after a lost connection.
func (s *Sessions) CheckDuplicate(ctx context.Context, id mesh.ID, process, address string) error {
	s.mu.Lock()
	old := s.sessions[id]
	s.mu.Unlock()
	if old == nil {
		return s.checkDuplicateElsewhere(ctx, id, process, address)
	}
	if process == "" || old.rival.process == "" || old.rival.process == process || !old.has(agentv1.FeaturePong) ||
		s.o.Observed.Of(id).Draining || !old.lives(ctx) {
		return nil
	}
	old.send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Duplicate{Duplicate: &agentv1.Duplicate{Address: address}}})
	return status.Errorf(codes.AlreadyExists, "duplicate: another agent with this name has been connected from %s since %s, and stays: end one of the two, or give this one another name",
		call.Address(old.stream.Context()), old.since.UTC().Format(time.RFC3339))
}

// RefuseDuplicate returns why another process of a proxy that has its session with this replica is refused, "" if it is not.
func (s *Sessions) RefuseDuplicate(ctx context.Context, id mesh.ID, process, address string) string {
	if s.Replica(id) != "" {
		return "" // it is not this replica that decides
	}
	if err := s.CheckDuplicate(ctx, id, process, address); err != nil {
		return status.Convert(err).Message()
	}
	return ""
}

// checkDuplicateElsewhere has the replica decide that has the session of the proxy.
func (s *Sessions) checkDuplicateElsewhere(ctx context.Context, id mesh.ID, process, address string) error {
	there, open := s.elsewhere(id)
	if !open || !there.Lost.IsZero() || process == "" || there.Proxy.GetSession().GetProcess() == process {
		return nil
	}
	if refusal := s.o.Peers.CheckDuplicate(ctx, there.Replica, id, process, address); refusal != "" {
		return status.Error(codes.AlreadyExists, refusal)
	}
	return nil
}
