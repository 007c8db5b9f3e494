package mesh

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// scraped starts a proxy with a Prometheus port on all addresses, and returns the port.
func scraped(t *testing.T, m *harness.Machine, o harness.ProxyOptions) (p *harness.Proxy, port string) {
	t.Helper()
	_, port, err := net.SplitHostPort(must.FreeAddress(t, m))
	must.Do(t, err)
	o.AgentArgs = append(o.AgentArgs, "--metrics-addr=:"+port)
	return must.Add(t, m, o)[0], port
}

// page returns the metrics as a Prometheus without a sidecar gets them. Its timeout is longer than the
// agent's timeout for Envoy.
func page(ctx context.Context, host, port string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return harness.Get(ctx, client, "http://"+net.JoinHostPort(host, port)+mesh.PathMetrics)
}

// families returns the names of the metrics in a page.
func families(page string) []string {
	var names []string
	for _, line := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(page, -1) {
		names = append(names, line[1])
	}
	return names
}

// TestMetricsOfPods scrapes a proxy of a STRICT mesh without a certificate, with each Envoy. The page has the metrics
// of docs/metrics.md, and each listed prefix matches a metric of that Envoy.
func TestMetricsOfPods(t *testing.T) {
	for _, envoy := range envoys {
		t.Run(filepath.Base(filepath.Dir(envoy)), func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, strict)
			b, port := scraped(t, m, harness.ProxyOptions{Name: "b-1", Service: "b", Protocol: "http", Envoy: envoy})
			a, callers := scraped(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Protocol: "tcp", Envoy: envoy, Outbound: []string{"a", "b"}})
			must.HaveEndpoints(t, a, "b", b.Inbound)
			must.HaveEndpoints(t, a, "a", a.Inbound)
			_, err := askHTTP(t.Context(), a.Outbounds["b"], false)
			must.Do(t, err)
			caller := harness.NewTCPCaller(a.Outbounds["a"], false)
			_, err = caller.Call(t.Context())
			must.Do(t, err)
			caller.Close()
			if _, err := askHTTP(t.Context(), b.Inbound, false); err == nil {
				t.Error("a call in plain text was answered: the mesh is not STRICT")
			}
			must.Poll(t, "Envoy's counters", func(ctx context.Context) error {
				text, err := page(ctx, "127.0.0.1", port)
				if err != nil {
					return err
				}
				for _, want := range []string{
					`(?m)^envoy_http_downstream_rq_xx\{.*envoy_response_code_class="2",.*envoy_http_conn_manager_prefix="inbound_\d+".*\} 1$`,
					`(?m)^envoy_http_downstream_rq_time_bucket\{`, `(?m)^envoy_listener_ssl_handshake\{`, `(?m)^envoy_server_live\{?\}? 1$`,
					`(?m)^sonde_dpagent_envoy_running 1$`, `(?m)^sonde_dpagent_envoy_lines_dropped_total 0$`, `\nsonde_dpagent_envoy_scrape_success 1\n$`,
				} {
					if !regexp.MustCompile(want).MatchString(text) {
						return fmt.Errorf("no %s in\n%s", want, text)
					}
				}
				return nil
			})
			var names []string // all of Envoy's metrics, used or not
			for _, p := range []*harness.Proxy{a, b} {
				text, err := p.EnvoyGet(t.Context(), "/stats/prometheus")
				must.Do(t, err)
				names = append(names, families(text)...)
			}
			for _, prefix := range mesh.DefaultMetricPrefixes() {
				if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
					t.Errorf("%s: Envoy has no such metric", prefix)
				}
			}
			for _, port := range []string{port, callers} {
				text, err := page(t.Context(), "127.0.0.1", port)
				must.Do(t, err)
				for _, name := range families(text) {
					isListed := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
					if strings.HasPrefix(name, "envoy_") && !slices.ContainsFunc(mesh.DefaultMetricPrefixes(), isListed) {
						t.Errorf("%s is on the page, and not listed", name)
					}
				}
			}
		})
	}
}

// TestMetricsInclude requests a part of Envoy's metrics.
func TestMetricsInclude(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	_, port := scraped(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", AgentArgs: []string{"--metrics-include=envoy_server_live,envoy_cluster_manager_"}})
	text, err := page(t.Context(), "127.0.0.1", port)
	must.Do(t, err)
	live := false
	for _, name := range families(text) {
		live = live || name == "envoy_server_live"
		if strings.HasPrefix(name, "envoy_") && name != "envoy_server_live" && !strings.HasPrefix(name, "envoy_cluster_manager_") {
			t.Errorf("%s was not asked for", name)
		}
	}
	if !live {
		t.Errorf("no envoy_server_live in\n%s", text)
	}
}

// TestMetricsOnEachAddress scrapes a pod that has two addresses.
func TestMetricsOnEachAddress(t *testing.T) {
	needIPv6(t)
	t.Parallel()
	m := newMesh(t, strict)
	_, port := scraped(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})
	for _, host := range []string{"127.0.0.1", "::1"} {
		text, err := page(t.Context(), host, port)
		must.Do(t, err)
		if !strings.Contains(text, "\nenvoy_server_live") {
			t.Errorf("%s gets\n%s", host, text)
		}
	}
}

// TestMetricsWithoutEnvoy scrapes a pod whose Envoy hangs.
func TestMetricsWithoutEnvoy(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	p, port := scraped(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})
	pid, err := p.EnvoyPID()
	must.Do(t, err)
	must.Do(t, syscall.Kill(pid, syscall.SIGSTOP))
	text, err := page(t.Context(), "127.0.0.1", port)
	must.Do(t, err)
	if !strings.HasSuffix(text, "\nsonde_dpagent_envoy_scrape_success 0\n") || !strings.Contains(text, "\nsonde_dpagent_session_connected 1\n") || strings.Contains(text, "\nenvoy_") {
		t.Errorf("while Envoy hangs the page is\n%s", text)
	}
	must.Poll(t, "the next Envoy", func(ctx context.Context) error {
		text, err := page(ctx, "127.0.0.1", port)
		if err == nil && !strings.HasSuffix(text, "\nsonde_dpagent_envoy_scrape_success 1\n") {
			err = fmt.Errorf("the page is\n%s", text)
		}
		return err
	})
}

// TestMetricsPortTaken starts an agent whose metrics port is in use.
func TestMetricsPortTaken(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)
	defer func() { _ = l.Close() }()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(must.Port(t, l.Addr().String())))
	p, err := m.Prepare(harness.ProxyOptions{Name: "a-1", Service: "a", AgentArgs: []string{"--metrics-addr=" + address}})
	must.Do(t, err)
	must.Do(t, p.Declare())
	must.Do(t, p.StartAgent(t.Context()))
	<-p.Agent.Done()
	if log := m.Logs(50); !strings.Contains(log, "--metrics-addr: \""+address+"\"") || !strings.Contains(log, "address already in use") {
		t.Errorf("the agent does not report that %s is in use:\n%s", address, log)
	}
}
