package agents_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/session"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

func probeFailures(n int, f *agentv1.ProbeFailure) *agentv1.AgentMessage {
	report := &agentv1.ProbeFailures{}
	for range n {
		report.Failures = append(report.Failures, f)
	}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_ProbeFailures{ProbeFailures: report}}
}

// TestProbeFailuresAreThoseOfTheCaller checks that failed probes are told with the proxy that the certificate names, and cut.
func TestProbeFailuresAreThoseOfTheCaller(t *testing.T) {
	told := make(chan session.ProbeFailure, 10)
	_, a := joined(t, func(o *agents.Options) { o.ProbeFailed = func(f session.ProbeFailure) { told <- f } })
	a.connect(false)
	a.send(probeFailures(1, &agentv1.ProbeFailure{
		Container: "app", Probe: "liveness", Verdict: "failure", Class: strings.Repeat("x", 100), Reason: strings.Repeat("y", 1000), Count: 3,
	}))
	f := <-told
	if f.Proxy.Mesh != "default" || f.Proxy.Dataplane != "web-1" || f.Container != "app" || f.Probe != "liveness" || f.Count != 3 {
		t.Errorf("told is %+v", f)
	}
	if len(f.Class) != 64 || len(f.Reason) != 512 {
		t.Errorf("class and reason have %d and %d bytes", len(f.Class), len(f.Reason))
	}
}

func TestTooManyProbeFailuresEndTheSession(t *testing.T) {
	_, a := joined(t, nil)
	a.connect(false)
	a.send(probeFailures(21, &agentv1.ProbeFailure{Container: "app"}))
	wantStatus(t, a.ending(), codes.InvalidArgument, "probe_failures: 21 failures, must be at most 20")
}
