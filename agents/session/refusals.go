package session

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// maxRefusalEvents is how many refusals of one session are passed to CallsRefused.
const maxRefusalEvents = 100

// callsRefused records which calls the proxy's Envoy refused in the last minute, until its session ends. It reports
// each cause once.
func (s *Sessions) callsRefused(sess *session, m *agentv1.Refusals) error {
	if n := len(m.GetRefusals()); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "refusals: %d, must be at most %d", n, agentv1.MaxReported)
	}
	for _, r := range m.GetRefusals() {
		if r.GetCount() > agentv1.MaxRefusals {
			return status.Errorf(codes.InvalidArgument, "refusals.count: %d, must be at most %d", r.GetCount(),
				uint32(agentv1.MaxRefusals))
		}
		r.Cause, r.Where = call.Shorten(r.GetCause()), call.Shorten(r.GetWhere())
	}
	s.mu.Lock()
	sess.refusals = m.GetRefusals()
	s.mu.Unlock()
	s.o.Peers.Changed(sess.peer.ID())
	for _, r := range m.GetRefusals() {
		if text := r.Text(); !sess.refused[text] && len(sess.refused) < maxRefusalEvents {
			sess.refused[text] = true
			s.o.Logger.WarnContext(sess.stream.Context(), "envoy of a proxy refuses calls", "mesh", sess.peer.Mesh,
				"proxy", sess.peer.Dataplane, "reason", r.Sentence())
			s.o.CallsRefused(sess.peer.Subject, r)
		}
	}
	return nil
}

// sentences describes refusals for operators.
func sentences(all []*agentv1.Refusal) []string {
	var texts []string
	for _, r := range all {
		texts = append(texts, r.Sentence())
	}
	return texts
}
