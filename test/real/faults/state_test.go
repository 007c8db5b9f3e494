package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestSecondControlPlane starts a second control plane with the state directory of the first: each would overwrite
// the CAs of the other. The second exits with an error, also right after the first was killed and restarted.
func TestSecondControlPlane(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})[0]
	for range 2 {
		out, err := exec.CommandContext(wait.Context(t), programs.ControlPlane, "--store=dir:"+m.StoreDir(), "--state-dir="+m.StateDir(),
			"--bind-address=127.0.0.1", "--agents-port=0", "--admin-port=0", "--health-port=0").CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
			t.Errorf("it exits with %v, want exit code 1", err)
		}
		if want := "state directory " + m.StateDir() + ": another sonde-cp uses it"; !strings.Contains(string(out), want) {
			t.Errorf("it prints %q, want %q", out, want)
		}
		m.ControlPlane.Kill()
		must.Do(t, m.StartControlPlane(t.Context()))
	}
	synced(t, p)
}

// TestStateDirectoryRemoved removes the state directory, and then replaces it: the control plane continues with its
// state in memory, but is not ready, because that state would not survive a restart.
func TestStateDirectoryRemoved(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	unready := func(reason string) {
		t.Helper()
		must.Poll(t, "the control plane to be unready", func(ctx context.Context) error {
			_, err := m.Get(ctx, "http://"+m.Health+"/readyz")
			if s := statusOf(err); s.Code != 503 || !strings.Contains(s.Body, "[-]state failed: state directory "+m.StateDir()+" "+reason) {
				return fmt.Errorf("its readiness is %d %s, want 503 and %q", s.Code, s.Body, reason)
			}
			return nil
		})
	}
	must.Do(t, os.Rename(m.StateDir(), m.StateDir()+".away"))
	unready("was removed")
	must.Do(t, os.Mkdir(m.StateDir(), 0o700))
	unready("was replaced")
	if _, err := m.Get(t.Context(), "http://"+m.Health+"/livez"); err != nil {
		t.Errorf("it is not live: %v", err)
	}
	must.Do(t, os.Remove(m.StateDir()))
	must.Do(t, os.Rename(m.StateDir()+".away", m.StateDir()))
	must.Poll(t, "the control plane to be ready", func(ctx context.Context) error { // a result is cached for a second
		_, err := m.Get(ctx, "http://"+m.Health+"/readyz")
		return err
	})
}

// TestBadFileAcrossARestart breaks the file of a Dataplane, while the control plane runs and while it does not: the
// proxy keeps its endpoint.
func TestBadFileAcrossARestart(t *testing.T) {
	for name, before := range map[string]bool{"broken before the control plane ends": true, "broken after the control plane has ended": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, 0)
			proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"})
			a, b := proxies[0], proxies[1]
			endpoints(t, a, "b", b)
			spoil := func() { must.Do(t, m.Put("b-1.yaml", strings.Replace(b.YAML(), `"networking"`, `"networkin"`, 1))) }
			if before {
				spoil()
				must.Log(t, m.ControlPlane, "object file has a problem", "networkin")
			}
			m.ControlPlane.Kill()
			if !before {
				spoil()
			}
			must.Do(t, m.StartControlPlane(t.Context()))
			must.Log(t, m.ControlPlane, "its last good content is used")
			synced(t, a)
			endpoints(t, a, "b", b)
			calls(t, a, "b")
			b2 := must.Add(t, m, harness.ProxyOptions{Name: "b-2", Service: "b"})[0] // changes still arrive
			endpoints(t, a, "b", b, b2)
		})
	}
}
