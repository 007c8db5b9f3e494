package session

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// probesFailed passes an agent's report of failed probes to Options.ProbeFailed.
func (s *Sessions) probesFailed(sess *session, m *agentv1.ProbeFailures) error {
	if n := len(m.GetFailures()); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "probe_failures: %d failures, must be at most %d", n, agentv1.MaxReported)
	}
	for _, f := range m.GetFailures() {
		f.Container, f.Probe = call.Shorten(f.GetContainer()), call.Shorten(f.GetProbe())
		f.Verdict, f.Class = call.Shorten(f.GetVerdict()), call.Shorten(f.GetClass())
		f.Reason = cut.Text(f.GetReason(), agentv1.MaxReason)
		s.o.ProbeFailed(sess.peer.Subject, f)
	}
	return nil
}
