package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestEnvoyCannotStart has an Envoy that exits at once because of an unknown flag, until the test repairs it.
// Meanwhile the agent, sondectl and the logs show that Envoy does not run, and why.
func TestEnvoyCannotStart(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	wrapper := filepath.Join(t.TempDir(), "envoy")
	program := func(flags string) {
		t.Helper()
		text := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = --version ] && exec %[1]q --version\nexec %[1]q %[2]s \"$@\"\n", programs.Envoy, flags)
		must.Do(t, os.WriteFile(wrapper+".new", []byte(text), 0o700))
		must.Do(t, os.Rename(wrapper+".new", wrapper))
	}
	program("--no-such-flag")
	p := must.Prepare(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Envoy: wrapper})
	must.Do(t, errors.Join(p.Declare(), p.StartApp(t.Context()), p.StartAgent(t.Context())))

	const says = "--no-such-flag"
	shows := func(what string, says ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := m.Ctl(ctx, strings.Fields(what)...)
			for _, text := range says {
				if err == nil && !strings.Contains(out, text) {
					err = fmt.Errorf("no %q in:\n%s", text, out)
				}
			}
			return err
		}
	}
	must.Poll(t, "the row of the proxy", shows("get proxies", "connected", "envoy does not run: ", says))
	must.Poll(t, "why", shows("why a-1", "not-ready", "its Envoy does not run: ", says))
	must.Poll(t, "the reason as JSON", shows("get proxies -o json", `"envoyDown"`, says))
	for range 20 { // also while Envoy restarts
		_, err := m.Get(t.Context(), "http://"+p.Admin+"/readyz/envoy?verbose")
		if status := statusOf(err); status.Code != 503 || !strings.Contains(err.Error(), says) {
			t.Fatalf("/readyz/envoy is %v, want 503 with %q", err, says)
		}
	}
	must.Log(t, m.ControlPlane, `"level":"WARN"`, "envoy of a proxy is not running", says)

	program("")
	must.Do(t, p.WaitReady(t.Context()))
	must.Poll(t, "sondectl to show the repaired state", func(ctx context.Context) error {
		out, err := m.Ctl(ctx, "get", "proxies")
		if err == nil && strings.Contains(out, "does not run") {
			err = errors.New(out)
		}
		return err
	})
}
