package podmetrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
)

// pod is a proxy that Prometheus scrapes.
type pod struct {
	machine *harness.Machine
	proxy   *harness.Proxy
	address string        // for Prometheus
	calls   []string      // addresses where the application calls services
	ready   time.Duration // from the start of the agent until Envoy had all services
}

// callPort is the port where the application calls services, at a loopback address for each.
const callPort = 18080

func startPod(b *testing.B, programs harness.Programs, services int) *pod {
	b.Helper()
	m := harness.New(b, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML("STRICT")})
	p := &pod{machine: m, address: freeAddress(b, m)}
	app := freeAddress(b, m)
	if _, err := m.StartApp(b.Context(), "app", "http", app); err != nil {
		b.Fatal(err)
	}
	var err error
	if p.proxy, err = m.Prepare(harness.ProxyOptions{
		Name: "web-1", Service: "web", AgentArgs: []string{"--metrics-addr=" + p.address},
	}); err != nil {
		b.Fatal(err)
	}
	text, err := p.declare(services, app)
	err = errors.Join(err, m.Put("web-1.yaml", text), p.proxy.StartApp(b.Context()))
	began := time.Now()
	if err := errors.Join(err, p.proxy.StartAgent(b.Context()), p.proxy.WaitReady(b.Context())); err != nil {
		b.Fatal(err)
	}
	if err := harness.Poll(b.Context(), "the pod to have all services", p.proxy.Synced); err != nil {
		b.Fatal(err)
	}
	p.ready = time.Since(began)
	return p
}

// declare writes services, each with one endpoint without a sidecar, and returns a Dataplane with an outbound for
// each.
func (p *pod) declare(services int, app string) (string, error) {
	_, port, err := net.SplitHostPort(app)
	if err != nil {
		return "", err
	}
	var outbounds []any
	for i := range services {
		// As long as on Kubernetes: <Service>_<namespace>_svc_<port>.
		name := fmt.Sprintf("service-%04d_shop_svc_8080", i)
		yaml := fmt.Sprintf("type: Service\nmesh: default\nname: %s\nprotocol: http\nendpoints: [{address: 127.0.0.1, port: %s}]\n", name, port)
		if err := p.machine.Put(name+".yaml", yaml); err != nil {
			return "", err
		}
		at := fmt.Sprintf("127.100.%d.%d", i/250, i%250+1)
		outbounds = append(outbounds, map[string]any{"address": at, "port": callPort, "tags": map[string]any{"kuma.io/service": name}})
		if i < called {
			p.calls = append(p.calls, fmt.Sprintf("%s:%d", at, callPort))
		}
	}
	var dataplane struct {
		Type       string         `json:"type"`
		Mesh       string         `json:"mesh"`
		Name       string         `json:"name"`
		Networking map[string]any `json:"networking"`
	}
	if err := json.Unmarshal([]byte(p.proxy.YAML()), &dataplane); err != nil {
		return "", err
	}
	dataplane.Networking["outbound"] = outbounds
	text, err := json.Marshal(dataplane)
	return string(text), err
}

func freeAddress(b *testing.B, m *harness.Machine) string {
	b.Helper()
	at, err := m.FreeAddress()
	if err != nil {
		b.Fatal(err)
	}
	return at
}

// call has the application call its services, and other clients call it, until Envoy has all their statistics in its
// histograms.
func (p *pod) call(b *testing.B) {
	b.Helper()
	for _, at := range append([]string{p.proxy.Inbound}, p.calls...) {
		c := harness.NewHTTPCaller("http://"+at+"/", true, false)
		for range 20 {
			_, err := c.Call(b.Context())
			if err != nil && at != p.proxy.Inbound { // which accepts only mTLS
				b.Fatal(err)
			}
		}
		c.Close()
	}
	if err := harness.Poll(b.Context(), "Envoy's histograms", func(ctx context.Context) error {
		text, err := p.machine.Get(ctx, "http://"+p.address+"/metrics")
		if err == nil && !strings.Contains(text, "\nenvoy_http_downstream_rq_time_bucket") {
			err = errors.New("no histograms yet")
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
}

// page is the size of a scraped page.
type page struct{ series, bytes int }

func (p *pod) scrape(b *testing.B) page {
	b.Helper()
	return p.get(b, p.address)
}

// scrapeAll scrapes the page on loopback, which has all metrics that Envoy has used.
func (p *pod) scrapeAll(b *testing.B) page {
	b.Helper()
	return p.get(b, p.proxy.Admin)
}

func (p *pod) get(b *testing.B, at string) page {
	b.Helper()
	text, err := p.machine.Get(b.Context(), "http://"+at+"/metrics")
	if err != nil {
		b.Fatal(err)
	}
	if !strings.Contains(text, "\nsonde_dpagent_envoy_scrape_success 1\n") {
		b.Fatal("a page without Envoy's metrics")
	}
	got := page{bytes: len(text)}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			got.series++
		}
	}
	return got
}

func (p *pod) envoyPID(b *testing.B) int {
	b.Helper()
	pid, err := p.proxy.EnvoyPID()
	if err != nil {
		b.Fatal(err)
	}
	return pid
}

// ran returns the CPU time of a process.
func (p *pod) ran(b *testing.B, pid int) time.Duration {
	b.Helper()
	cpu, err := proc.CPU(pid)
	if err != nil {
		b.Fatal(err)
	}
	return cpu.Ran
}
