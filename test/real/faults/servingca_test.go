package faults

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestServingCARotation replaces the control plane's CA under load. All agents have a copy of the old CA file. After
// each step, one agent and the control plane restart: all agents and Envoys reconnect.
func TestServingCARotation(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	file := filepath.Join(m.StateDir(), "serving-ca.crt")
	given := filepath.Join(t.TempDir(), "given.crt")
	old := read(t, file)
	must.Do(t, os.WriteFile(given, []byte(old), 0o600))
	withCopy := []string{"--ca-cert-file=" + given}
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}, AgentArgs: withCopy},
		harness.ProxyOptions{Name: "b-1", Service: "b", AgentArgs: withCopy},
		harness.ProxyOptions{Name: "c-1", Service: "c", AgentArgs: withCopy})
	a, c := proxies[0], proxies[2]
	synced(t, proxies...)
	load := startLoad(t, httpCallers(a, "b")...)
	restart := func() {
		t.Helper()
		c.Agent.Kill()
		must.Do(t, c.RunAgent())
		must.Do(t, c.WaitReady(t.Context()))
		m.ControlPlane.Kill()
		must.Do(t, m.StartControlPlane(t.Context()))
		synced(t, proxies...)
	}
	rotate := func(args ...string) (string, error) {
		return m.Ctl(t.Context(), append([]string{"rotate", "serving-ca", "--wait"}, args...)...)
	}
	must.Make(t, load, 20)

	_, err := rotate()
	if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != exitUnfinished {
		t.Fatalf("rotate serving-ca = %v, want exit code %d", err, exitUnfinished)
	}
	status, _, err := m.CtlBoth(t.Context(), "rotate", "serving-ca", "--status")
	if err == nil {
		t.Errorf("the rotation is over before --continue: %s", status)
	}
	both := read(t, file)
	if strings.Count(both, "BEGIN CERTIFICATE") != 2 || !strings.HasPrefix(both, old) {
		t.Errorf("%s does not have both the old and the new CA: %s", file, both)
	}
	restart()
	must.Make(t, load, 20)

	_, err = rotate("--continue")
	must.Do(t, err)
	after := read(t, file)
	if after != strings.TrimPrefix(both, old) {
		t.Errorf("%s is not the new CA alone: %s", file, after)
	}
	restart()
	must.Make(t, load, 100)

	// A later proxy has the new file. A proxy with the old file and no work directory is refused, with the reason.
	late := must.Add(t, m, harness.ProxyOptions{Name: "d-1", Service: "d"})[0]
	synced(t, late)
	stranger := must.Prepare(t, m, harness.ProxyOptions{Name: "e-1", Service: "e", AgentArgs: withCopy})
	must.Do(t, errors.Join(stranger.Declare(), stranger.StartApp(t.Context()), stranger.StartAgent(t.Context())))
	must.Log(t, stranger.Agent, "certificate signed by unknown authority")

	want := []string{"trust both", "trust both", "renew leaves", "trust new", ""} // the second step is --continue
	if got := rotationSteps(t, m, "serving CA rotation"); !slices.Equal(got, want) {
		t.Errorf("the rotation took the steps %q, want %q", got, want)
	}
	must.Hold(t, load)
}
