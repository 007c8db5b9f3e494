package session

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// ProbeFailure is about all checks of one probe that failed in one way since the agent last said so.
type ProbeFailure struct {
	// Proxy whose agent has answered the probe, which is authenticated.
	Proxy identity.Subject
	// Container and Probe, such as liveness, Verdict and Class are words of the agent, cut to 64 bytes.
	Container, Probe, Verdict, Class string
	// Reason of the last one, to be shown.
	Reason string
	Count  uint32
}

// probesFailed passes on what an agent reports of its probes.
func (s *Sessions) probesFailed(sess *session, m *agentv1.ProbeFailures) error {
	if n := len(m.GetFailures()); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "probe_failures: %d failures, must be at most %d", n, agentv1.MaxReported)
	}
	for _, f := range m.GetFailures() {
		s.o.ProbeFailed(ProbeFailure{
			Proxy: sess.peer.Subject, Container: call.Shorten(f.GetContainer()), Probe: call.Shorten(f.GetProbe()), Verdict: call.Shorten(f.GetVerdict()),
			Class: call.Shorten(f.GetClass()), Reason: cut.Text(f.GetReason(), agentv1.MaxReason), Count: f.GetCount(),
		})
	}
	return nil
}
