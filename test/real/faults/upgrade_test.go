package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestEnvoyUpgraded runs an Envoy that reports an unsupported version, and replaces its binary by a supported
// version. The control plane sees the new version when Envoy restarts.
func TestEnvoyUpgraded(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	binary := filepath.Join(t.TempDir(), "envoy")
	must.Do(t, os.WriteFile(binary, fmt.Appendf(nil, `#!/bin/sh
[ "$1" = --version ] && { echo "envoy  version: 0a1b/1.37.4/Clean/RELEASE/BoringSSL"; exit; }
exec %s "$@"
`, programs.Envoy), 0o700))
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Envoy: binary})[0]
	runsVersion(t, p, "1.37.4")
	must.Log(t, p.Agent, `"msg":"unsupported version of envoy","mesh":"default","proxy":"a-1","envoyVersion":"1.37.4","supported":"1.38 to 1.40"`)
	table, err := m.Ctl(t.Context(), "get", "proxies")
	must.Do(t, err)
	if want := "\n  unsupported: envoy 1.37.4: supported are 1.38 to 1.40\n"; !strings.Contains(table, want) {
		t.Errorf("sondectl prints\n%s\nwithout %q", table, want)
	}

	must.Do(t, os.Symlink(programs.Envoy, binary+".new"))
	must.Do(t, os.Rename(binary+".new", binary))
	killEnvoy(t, p)
	must.Do(t, p.WaitReady(t.Context()))
	runsVersion(t, p, versionOf(t, p))
	table, err = m.Ctl(t.Context(), "get", "proxies")
	must.Do(t, err)
	if strings.Contains(table, "unsupported") {
		t.Errorf("sondectl prints\n%s", table)
	}
	m.ControlPlane.Kill()
	must.Do(t, m.StartControlPlane(t.Context()))
	runsVersion(t, p, versionOf(t, p)) // a new session reports the version, too
}

// runsVersion waits until the control plane shows that version for a proxy's Envoy.
func runsVersion(t *testing.T, p *harness.Proxy, version string) {
	t.Helper()
	must.Poll(t, "Envoy "+version+" of "+p.Name, func(ctx context.Context) error {
		s, err := p.State(ctx)
		if err == nil && (s.Agent == nil || s.Agent.EnvoyVersion != version) {
			err = errors.New("it is shown as " + fmt.Sprintf("%+v", s.Agent))
		}
		return err
	})
}

// versionOf returns the version of a proxy's Envoy, such as 1.40.0.
func versionOf(t *testing.T, p *harness.Proxy) string {
	t.Helper()
	var body string
	must.Poll(t, "the Envoy of "+p.Name+" to answer", func(ctx context.Context) (err error) { // readiness is cached for a second
		body, err = p.EnvoyGet(ctx, "/server_info")
		return err
	})
	var info struct {
		Version string `json:"version"`
	}
	must.Do(t, json.Unmarshal([]byte(body), &info))
	parts := strings.Split(info.Version, "/")
	if len(parts) < 2 {
		t.Fatalf("%s has an Envoy of version %q", p.Name, info.Version)
	}
	return parts[1]
}
