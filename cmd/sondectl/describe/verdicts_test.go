package describe_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

func TestProbes(t *testing.T) {
	now := time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)
	change := func(verdict string, ago time.Duration) *adminv1.VerdictChange {
		return &adminv1.VerdictChange{Verdict: verdict, At: timestamppb.New(now.Add(-ago))}
	}
	tests := map[string]struct {
		probe *adminv1.ProbeVerdicts
		want  string
		fails bool
	}{
		"it fails": {
			&adminv1.ProbeVerdicts{Container: "app", Probe: "readiness", Reason: "connection refused", Total: 2, Changes: []*adminv1.VerdictChange{change("success", time.Hour), change("failure", 3*time.Minute)}},
			"readiness probe of container app (for 3m) fails: connection refused", true,
		},
		"since the agent started": {
			&adminv1.ProbeVerdicts{Inbound: "10.0.0.1:80", Probe: "readiness", Total: 1, Changes: []*adminv1.VerdictChange{change("success", 3*time.Minute)}},
			"serviceProbe of inbound 10.0.0.1:80 (for at least 3m) passes", false,
		},
		"the last of many": {
			&adminv1.ProbeVerdicts{Container: "app", Probe: "liveness", Total: 12, Changes: []*adminv1.VerdictChange{change("held", time.Second)}},
			"liveness probe of container app (for 1s) fails, and the failure is withheld", true,
		},
		"by a clock that is behind": {
			&adminv1.ProbeVerdicts{Container: "app", Probe: "liveness", Total: 2, Changes: []*adminv1.VerdictChange{change("errored", -time.Hour)}},
			"liveness probe of container app (for 0s) has no verdict", true,
		},
		"not checked": {&adminv1.ProbeVerdicts{Container: "app", Probe: "startup"}, "startup probe of container app has not been checked since the agent started", false},
		"the kubelet does not ask": {
			&adminv1.ProbeVerdicts{Container: "app", Probe: "liveness", Total: 2, Changes: []*adminv1.VerdictChange{change("success", time.Hour), change("not asked", 3*time.Minute)}},
			"liveness probe of container app (for 3m) is not checked by the kubelet: its container may not be running", false,
		},
		"a later version": {
			&adminv1.ProbeVerdicts{Container: "app", Probe: "startup", Total: 2, Changes: []*adminv1.VerdictChange{change("unknown", 0)}},
			"startup probe of container app (for 0s) has an unknown verdict, from a later version", false,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := describe.Probes(&adminv1.Verdicts{Probes: []*adminv1.ProbeVerdicts{tc.probe}})[0]
			if got := p.Text(now); got != tc.want || p.Fails() != tc.fails {
				t.Errorf("%q, fails %v, want %q, %v", got, p.Fails(), tc.want, tc.fails)
			}
		})
	}
}
