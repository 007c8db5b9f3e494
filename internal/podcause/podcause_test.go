package podcause_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/podcause"
)

func TestFailure(t *testing.T) {
	tests := map[string]podcause.Failure{
		"Liveness probe failed: refused":                      {Probe: "liveness", Verdict: "failure", Reason: "refused"},
		"Startup probe failed: refused":                       {Probe: "startup", Reason: "refused"},
		"Readiness probe errored and was discarded: too busy": {Probe: "readiness", Verdict: "errored", Reason: "too busy"},
		"Readiness probe warning: 302":                        {Probe: "readiness", Verdict: "warning", Reason: "302"},
		"PostStart hook failed: dial tcp: connection refused": {Probe: "postStart", Verdict: "failure", Reason: "dial tcp: connection refused"},
		" probe failed: of an agent that names none":          {Verdict: "failure", Reason: "of an agent that names none"},
	}
	for want, failure := range tests {
		if got := failure.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

func TestFailureReason(t *testing.T) {
	tests := map[string]struct {
		probe, note, want string
		is                bool
	}{
		"of a failure":       {"readiness", podcause.Failure{Probe: "readiness", Verdict: "failure", Reason: "refused: x"}.String(), "refused: x", true},
		"of another probe":   {"liveness", "Readiness probe failed: refused", "", false},
		"of a discarded one": {"readiness", "Readiness probe errored and was discarded: too busy", "", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := podcause.FailureReason(tc.probe, tc.note); ok != tc.is || ok && got != tc.want {
				t.Errorf("FailureReason() = %q, %v, want %q, %v", got, ok, tc.want, tc.is)
			}
		})
	}
}
