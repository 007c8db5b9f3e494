package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestFewDescriptors gives a control plane a low limit of open files, and opens more silent connections than the
// limit at each of its ports.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	limited := programs
	limited.ControlPlane = withFiles(t, "1024", programs.ControlPlane)
	m := harness.New(t, harness.Options{Programs: limited, MeshYAML: meshYAML(0)})
	must.Log(t, m.ControlPlane, "limit of open files is low", `"limit":1024`)
	before := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})
	for _, at := range []string{m.Agents, m.Admin, m.Health} {
		must.Silent(t, 1300, at)
	}
	for _, page := range []string{"/livez", "/readyz", "/metrics"} {
		if _, err := m.Get(t.Context(), "http://"+m.Health+page); err != nil {
			t.Error(err)
		}
	}
	joined := must.Add(t, m, harness.ProxyOptions{Name: "b-1", Service: "b"}) // needs a token, which sondectl creates
	endpoints(t, before[0], "b", joined...)
	if files := metrics(t, m)["process_open_fds"]; files > 1024-64 {
		t.Errorf("the control plane has %v files open", files)
	}
}

// TestTooFewDescriptors starts programs whose limit of open files is too low: they exit with an
// error.
func TestTooFewDescriptors(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), withFiles(t, "200", programs.ControlPlane), "--store=dir:"+t.TempDir(), "--state-dir="+filepath.Join(t.TempDir(), "state"))
	out, err := cmd.CombinedOutput()
	if want := "sonde-cp: open files (RLIMIT_NOFILE, ulimit -Hn): 200: must be at least "; cmd.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), want) {
		t.Errorf("it ends with %v: %s\nwant exit status 1: %s", err, out, want)
	}
}

// withFiles returns a program that runs another program with this limit of open files.
func withFiles(t *testing.T, limit, program string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(program))
	must.Do(t, os.WriteFile(path, []byte("#!/bin/sh\nulimit -n "+limit+" && exec "+program+" \"$@\"\n"), 0o700))
	return path
}
