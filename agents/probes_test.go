package agents_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
)

func probeFailures(n int, f *agentv1.ProbeFailure) *agentv1.AgentMessage {
	report := &agentv1.ProbeFailures{}
	for range n {
		report.Failures = append(report.Failures, f)
	}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_ProbeFailures{ProbeFailures: report}}
}

// TestProbeFailuresAreThoseOfTheCaller checks that failed probes are passed on with the proxy of the certificate, and
// with texts cut.
func TestProbeFailuresAreThoseOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, from := make(chan *agentv1.ProbeFailure, 10), make(chan identity.Subject, 10)
		_, a := joined(t, func(o *agents.Options) {
			o.ProbeFailed = func(proxy identity.Subject, f *agentv1.ProbeFailure) { from <- proxy; told <- f }
		})
		a.connect(false)
		a.send(probeFailures(1, &agentv1.ProbeFailure{
			Container: "app", Probe: "liveness", Verdict: "failure", Class: strings.Repeat("x", 100), Reason: strings.Repeat("y", 1000), Count: 3,
		}))
		proxy, f := <-from, <-told
		if proxy.Mesh != "default" || proxy.Dataplane != "web-1" || f.GetContainer() != "app" || f.GetProbe() != "liveness" || f.GetCount() != 3 {
			t.Errorf("reported %v of %+v", f, proxy)
		}
		if len(f.GetClass()) != 64 || len(f.GetReason()) != 512 {
			t.Errorf("class and reason have %d and %d bytes", len(f.GetClass()), len(f.GetReason()))
		}
	})
}

func TestTooManyProbeFailuresEndTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a := joined(t, nil)
		a.connect(false)
		a.send(probeFailures(21, &agentv1.ProbeFailure{Container: "app"}))
		wantStatus(t, a.ending(), codes.InvalidArgument, "probe_failures: 21 failures, must be at most 20")
	})
}
