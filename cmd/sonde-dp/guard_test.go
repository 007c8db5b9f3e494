package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestBecomesGuard shows when the program becomes a guard: if it will answer probes, and its options are right.
func TestBecomesGuard(t *testing.T) {
	const (
		probes = `[{"httpGet":{"port":80}}]`
		run    = "run --cp-address=127.0.0.1:1 --ca-cert-file=none --name=x --dataplane-token-file=none --envoy-path=/none"
	)
	tests := map[string]struct {
		args, probes string
		want         bool
	}{
		"run":                       {run + " --virtual-probes-port=9001", probes, true},
		"run, default port":         {run, probes, true},
		"run, no port":              {run + " --virtual-probes-port=0", probes, false},
		"run, the last one counts":  {run + " --virtual-probes-port=0 --virtual-probes-port 9001", probes, true},
		"run, nothing to answer":    {run, " [] ", false},
		"run, no table":             {run, "", false},
		"run, a bad table":          {run, "{", false},
		"run, a bad option":         {run + " --concurrency=-1", probes, false},
		"probes":                    {"probes --virtual-probes-port=9001", probes, true},
		"probes, nothing to answer": {"probes", "", true},
		"probes, a bad option":      {"probes --virtual-probes-port=0", probes, false},
		"wait":                      {"wait --timeout=1ns", probes, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(mesh.EnvProbeTable, tc.probes)
			t.Setenv(mesh.EnvInstanceIP, "127.0.0.1")
			became := errors.New("it becomes a guard")
			cmd := newCommand(func() error { return became })
			cmd.SetArgs(strings.Fields(tc.args))
			if err := cmd.ExecuteContext(t.Context()); errors.Is(err, became) != tc.want {
				t.Errorf("%s = %v, want a guard: %v", tc.args, err, tc.want)
			}
		})
	}
}
