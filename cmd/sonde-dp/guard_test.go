package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/logging"
)

// TestBecomesGuard shows that the program becomes a guard if it will answer probes and its options are valid.
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
			became := errors.New("the process becomes a guard")
			cmd := newCommand(func(logging.Format) error { return became })
			cmd.SetArgs(strings.Fields(tc.args))
			if err := cmd.ExecuteContext(t.Context()); errors.Is(err, became) != tc.want {
				t.Errorf("%s = %v, want a guard: %v", tc.args, err, tc.want)
			}
		})
	}
}

// TestGuardLogsAsItsProgram shows that the guard gets the value of --log-format.
func TestGuardLogsAsItsProgram(t *testing.T) {
	t.Setenv(mesh.EnvProbeTable, `[{"httpGet":{"port":80}}]`)
	t.Setenv(mesh.EnvInstanceIP, "127.0.0.1")
	for given, want := range map[string]logging.Format{"": logging.Auto, "--log-format=text": logging.Text, "--log-format=json": logging.JSON} {
		t.Run(given, func(t *testing.T) {
			got, became := logging.Format("not asked"), errors.New("the process becomes a guard")
			cmd := newCommand(func(f logging.Format) error {
				got = f
				return became
			})
			cmd.SetArgs(strings.Fields("probes " + given))
			if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, became) || got != want {
				t.Errorf("log format of the guard = %q, error %v, want %q", got, err, want)
			}
		})
	}
}
