package dpagent_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent"
	sondeprobe "github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
)

// TestProbesBadInput checks that invalid probes are reported before anything starts.
func TestProbesBadInput(t *testing.T) {
	tests := map[string]struct {
		probes sondeprobe.Environment
		want   string
	}{
		"a table that does not parse": {sondeprobe.Environment{Table: `[{"id":"a"}]`, InstanceIP: "127.0.0.1", Port: 9000}, `probes[0] (id "a"`},
		"the same, with no port":      {sondeprobe.Environment{Table: `[{}]`}, "probes[0]"},
		"no address":                  {sondeprobe.Environment{Table: `[{"grpc":{"port":1}}]`, Port: 9000}, "INSTANCE_IP: is required"},
		"the virtual port":            {sondeprobe.Environment{Table: `[{"grpc":{"port":9000}}]`, InstanceIP: "127.0.0.1", Port: 9000}, "must not be the virtual port"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := minimal()
			o.Probes = tc.probes
			_, err := newAgent(t, o)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

// TestNoExecHelper checks that New does not fail because there is no helper to copy: its error is about Envoy, the next
// step.
func TestNoExecHelper(t *testing.T) {
	o := minimal()
	o.EnvoyPath = "/missing/envoy"
	o.Probes = sondeprobe.Environment{
		Table:      `[{"id":"a","container":"app","type":"liveness","exec":{"command":["/alive"]}}]`,
		InstanceIP: "127.0.0.1", Port: 9000,
	}
	var log logtest.Buffer
	_, err := dpagent.New(t.Context(), o, slog.New(slog.NewTextHandler(&log, nil)))
	if err == nil || !strings.Contains(err.Error(), "EnvoyPath") {
		t.Errorf("New() error = %v, want one of EnvoyPath", err)
	}
	if text := log.String(); !strings.Contains(text, "failed to copy the helper for exec probes") {
		t.Errorf("log: %s", text)
	}
}
