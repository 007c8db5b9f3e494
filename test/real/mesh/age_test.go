package mesh

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestConnectionsAge lets each connection with the control plane reach its maximum age once, under load. No call
// fails, no agent is lost or not ready, no resource is sent again, and no agent logs a warning.
func TestConnectionsAge(t *testing.T) {
	t.Parallel()
	m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(strict), ControlPlaneArgs: []string{"--connection-age=1m"}})
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
		harness.ProxyOptions{Name: "b-1", Service: "b", ServiceProbe: map[string]any{"tcp": map[string]any{}, "interval": "1s"}},
		harness.ProxyOptions{Name: "b-2", Service: "b"})
	a := proxies[0]
	must.HaveEndpoints(t, a, "b", proxies[1].Inbound, proxies[2].Inbound)
	for _, p := range proxies {
		must.Poll(t, p.Name+" to have all", p.Synced)
		must.Do(t, p.WaitReady(t.Context()))
	}
	before, err := m.Metrics(t.Context())
	must.Do(t, err)
	load := harness.StartLoad(t.Context(), 5*time.Millisecond, harness.NewHTTPCaller("http://"+a.Outbounds["b"]+"/", true, false),
		harness.NewHTTPCaller("http://"+a.Outbounds["b"]+"/", false, false))

	// An agent's connection ends with its last call; an Envoy's connection ends 10 s after its
	// maximum age.
	const aged = 6
	began := time.Now()
	reconnecting := 0
	must.Poll(t, "all connections to end by their age", func(ctx context.Context) error {
		now, err := m.Metrics(ctx)
		must.Do(t, err)
		if n := now[`sonde_agents_lost{mesh="default"}`]; n != 0 {
			t.Errorf("%v agents are lost", n)
		}
		if now["sonde_agents_connected"] < float64(len(proxies)) {
			reconnecting++
		}
		for _, p := range proxies {
			if _, err := m.Get(ctx, "http://"+p.Admin+"/readyz"); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		if n := now["sonde_connections_aged_total"]; n < aged {
			return fmt.Errorf("%v have", n)
		}
		return nil
	})
	t.Logf("all have ended after %s, %d samples of the metrics had an agent without a session", time.Since(began).Round(time.Second), reconnecting)
	for _, p := range proxies {
		must.Poll(t, p.Name+" to be connected again", p.Synced)
	}
	r := must.Hold(t, load)
	t.Log(r)
	after, err := m.Metrics(t.Context())
	must.Do(t, err)
	for name, n := range after {
		if strings.HasPrefix(name, "sonde_xds_resources_total") && n != before[name] {
			t.Errorf("%s: %v more resources were sent, though no resource has changed", name, n-before[name])
		}
	}
	if n := after[`sonde_identity_connections_closed_total{reason="identity"}`]; n != 0 {
		t.Errorf("%v connections were more than a proxy may have", n)
	}
	if lines := logOf(t, m, "session", "WARN"); len(lines) > 0 {
		t.Errorf("agents warn: %s", lines)
	}
	for text, want := range map[string]int{`"agent connected"`: 3, `"agent disconnected"`: 0, `"proxy connected"`: 6, `"proxy disconnected"`: 0, `"session open"`: 3} {
		if lines := logOf(t, m, text); len(lines) != want {
			t.Errorf("%d lines with %s, want %d: %s", len(lines), text, want, lines)
		}
	}
	must.Do(t, proxies[2].SetReady(false)) // the streams work
	must.HaveEndpoints(t, a, "b", proxies[1].Inbound)
}

// logOf returns the lines of all logs that contain all these texts.
func logOf(t *testing.T, m *harness.Machine, texts ...string) []string {
	t.Helper()
	all, err := m.LogFiles()
	if err == nil && len(all) == 0 {
		err = errors.New("there are no logs")
	}
	must.Do(t, err)
	var found []string
	for _, text := range all {
		for line := range strings.Lines(text) {
			has := true
			for _, want := range texts {
				has = has && strings.Contains(line, want)
			}
			if has {
				found = append(found, line)
			}
		}
	}
	return found
}
