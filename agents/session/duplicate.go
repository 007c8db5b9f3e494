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

// pongTimeout is how long an agent with a session may take to answer a Ping: longer than a busy agent needs, but short
// for an agent that restarts after its host died.
const pongTimeout = 3 * time.Second

// rival describes a session to a second process of its proxy.
type rival struct {
	process string // Hello's instance; old agents send none
	pong    question
}

// lives sends the agent a Ping, and reports whether a Pong arrived in time.
func (sess *session) lives(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, pongTimeout)
	defer cancel()
	select {
	case <-sess.rival.pong.ask(sess,
		&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Ping{Ping: &agentv1.Ping{}}}):
		return true
	case <-ctx.Done():
		return false
	}
}

// CheckDuplicate returns an error if another live process has the session of the proxy: otherwise two processes would
// replace each other's session forever. A draining process may be replaced. An agent without a process name takes over,
// as after a lost connection.
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
	old.send(&agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_Duplicate{Duplicate: &agentv1.Duplicate{Address: address}}})
	return status.Errorf(codes.AlreadyExists,
		"duplicate: another agent with this name is connected from %s since %s: "+
			"stop one of the two, or give this one another name",
		call.Address(old.stream.Context()), old.since.UTC().Format(time.RFC3339))
}

// RefuseDuplicate returns why this replica rejects a second process of a proxy with a session here, "" if it does not.
func (s *Sessions) RefuseDuplicate(ctx context.Context, id mesh.ID, process, address string) string {
	if s.Replica(id) != "" {
		return "" // another replica decides
	}
	if err := s.CheckDuplicate(ctx, id, process, address); err != nil {
		return status.Convert(err).Message()
	}
	return ""
}

// checkDuplicateElsewhere asks the replica that has the session of the proxy.
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
