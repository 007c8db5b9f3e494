package controlplane

import (
	"testing"

	"github.com/sonde-mesh/sonde/agents/session"
)

func TestNote(t *testing.T) {
	tests := map[string]session.ProbeFailure{
		"Liveness probe failed: refused":                      {Probe: "liveness", Verdict: "failure", Reason: "refused"},
		"Readiness probe errored and was discarded: too busy": {Probe: "readiness", Verdict: "errored", Reason: "too busy"},
		"PostStart hook failed: dial tcp: connection refused": {Probe: "postStart", Verdict: "failure", Reason: "dial tcp: connection refused"},
	}
	for want, failure := range tests {
		if got := note(failure); got != want {
			t.Errorf("note() = %q, want %q", got, want)
		}
	}
}
