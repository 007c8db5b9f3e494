package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/lb"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// startEnvoy runs a real Envoy as an agent does, and waits until it is ready. Its directory has a path that is too
// long for a Unix socket.
func startEnvoy(t testing.TB, bootstrap []byte) *envoy.Envoy {
	t.Helper()
	dir, err := workdir.Open(filepath.Join(t.TempDir(), strings.Repeat("long/", 30)))
	must.Do(t, err)
	must.Do(t, dir.Write(workdir.Bootstrap, bootstrap))
	logs := &logtest.Buffer{}
	e := envoy.New(envoy.Options{
		Path: envoyPath, Dir: dir, Restore: func() error { return nil }, Concurrency: 1, Logger: slog.New(slog.NewTextHandler(logs, nil)),
		Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx, func(string) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, dir.Close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(logs)
		}
	})
	wait.Until(t, "Envoy to be ready", func() error { return e.Ready(t.Context()) })
	return e
}

// listener returns a listener of Envoy. A warming listener waits for routes that never arrive.
func listener(name, address, port string, warms bool) string {
	routes := `"route_config": {"virtual_hosts": []}`
	if warms {
		routes = `"rds": {"route_config_name": "` + name + `", "config_source": {"resource_api_version": "V3", "initial_fetch_timeout": "0s",
		  "api_config_source": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "silent"}}]}}}`
	}
	return fmt.Sprintf(`{"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": %q,
	 "address": {"socket_address": {"address": %q, "port_value": %s}},
	 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
	  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "x", %s,
	  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`,
		name, address, port, routes)
}

// TestEnvoyDoesNotApply has a real Envoy that keeps listeners warming, refuses them, and applies
// them.
func TestEnvoyDoesNotApply(t *testing.T) {
	t.Parallel()
	lds := filepath.Join(t.TempDir(), "lds.json")
	write := func(listeners ...string) {
		t.Helper()
		must.Do(t, os.WriteFile(lds+".new", []byte(`{"resources": [`+strings.Join(listeners, ",")+`]}`), 0o600))
		must.Do(t, os.Rename(lds+".new", lds))
	}
	write()
	e := startEnvoy(t, bootstrap(t, ports{LDS: lds, Silent: portOf(t, listen(t).Addr().String())}))
	server := lb.New(lb.Options{
		Ready: func(context.Context) error { return nil }, Begun: func() bool { return false }, FromThisHost: func(*http.Request) bool { return true },
		Limit: 3 * time.Second, Registerer: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		server.Follow(ctx, e)
	}()
	t.Cleanup(func() { cancel(); <-followed })
	families := func(v4, v6 bool) {
		t.Helper()
		wait.Until(t, "", func() error {
			var a struct {
				Status map[string]struct{ Healthy bool }
			}
			recorder := httptest.NewRecorder()
			server.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/livez", http.NoBody))
			err := json.Unmarshal(recorder.Body.Bytes(), &a)
			if err != nil || a.Status["IPv4"].Healthy != v4 || a.Status["IPv6"].Healthy != v6 {
				return fmt.Errorf("/livez = %s, %w, want IPv4 %t, IPv6 %t", recorder.Body, err, v4, v6)
			}
			return nil
		})
	}
	free := must.FreeAddresses(t, 2)
	good, other := listener("good", "127.0.0.1", portOf(t, free[0]), false), portOf(t, free[1])
	write(good)
	families(true, true)
	write(good, listener("warms", "::1", other, true))
	families(true, false)
	write(good, listener("warms", "127.0.0.1", other, true))
	families(false, true)
	write(good)
	families(true, true)
	// A refused listener does not warm.
	write(good, listener("refused", "192.0.2.1", other, false))
	wait.Until(t, "", func() error {
		stats, err := e.Get(t.Context(), "/stats?filter=lds.update_rejected")
		if err == nil && strings.Contains(string(stats), "update_rejected: 0") {
			err = errors.New(string(stats))
		}
		return err
	})
	gauges, err := e.Get(t.Context(), "/stats?filter=total_listeners_warming")
	if err != nil || !strings.Contains(string(gauges), "total_listeners_warming: 0") {
		t.Errorf("Envoy has refused a listener: %s, %v", gauges, err)
	}
	families(true, true)
}

// TestMetricsOfEnvoy parses the statistics of a real Envoy together with the agent's metrics, as Prometheus would.
func TestMetricsOfEnvoy(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	page := scrape.NewPage(registry, startEnvoy(t, bootstrap(t, ports{})))
	_, body := ask(t, "http://"+serve(t, page.Local().ServeHTTP)+"/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, body)
	}
	for _, name := range []string{"envoy_server_live", "envoy_server_uptime"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}

// TestNoEnvoy uses paths that are not an Envoy.
func TestNoEnvoy(t *testing.T) {
	for _, path := range []string{"/nonexistent/envoy", "/bin/true"} {
		o := dpagent.DefaultOptions()
		o.ControlPlane, o.CAFile, o.Name, o.TokenFile, o.EnvoyPath = "cp:5678", "ca", "web-1", "token", path
		_, err := dpagent.New(t.Context(), o, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), "EnvoyPath") || !strings.Contains(err.Error(), path) {
			t.Errorf("New() with Envoy %s: error = %v, want one that names it", path, err)
		}
	}
}

// TestActivity uses other processes instead of Envoy: the kernel's counters distinguish a hanging process from a
// working or waiting process.
func TestActivity(t *testing.T) {
	tests := map[string]struct {
		script string
		want   func(before, now envoy.Activity) bool
	}{
		"waits":   {"exec sleep 1000", func(before, now envoy.Activity) bool { return !now.Busy && now == before }},
		"stopped": {"kill -STOP $$", func(before, now envoy.Activity) bool { return !now.Busy && now == before }},
		"busy":    {"while :; do :; done", func(_, now envoy.Activity) bool { return now.Busy }},
		"wakes":   {"while sleep 0.05; do :; done", func(before, now envoy.Activity) bool { return !now.Busy && now.Switches != before.Switches }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := envoy.ProcessLauncher{}.Launch(envoy.Command{
				Path: "/bin/sh", Args: []string{"-c", tc.script}, Dir: t.TempDir(), Forward: func(r io.Reader) { _, _ = io.Copy(io.Discard, r) },
			})
			must.Do(t, err)
			defer func() {
				must.Do(t, p.Signal(syscall.SIGKILL))
				if err := p.Err(); err == nil || err.Error() != "signal: killed" {
					t.Errorf("Err() = %v", err)
				}
			}()
			wait.Until(t, "", func() error {
				before, _ := p.Activity()
				time.Sleep(100 * time.Millisecond)
				if now, known := p.Activity(); !known || !tc.want(before, now) {
					return fmt.Errorf("activity %+v, %t, after %+v", now, known, before)
				}
				return nil
			})
		})
	}
}
