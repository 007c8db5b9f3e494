package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestControlPlaneKilled kills the control plane repeatedly. Calls continue. A restarted control plane sends no
// resources until something changes.
func TestControlPlaneKilled(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "t"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b"},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp"})
	a, b1, b2 := proxies[0], proxies[1], proxies[2]
	endpoints(t, a, "b", b1, b2)
	synced(t, proxies...)
	load := startLoad(t, append(httpCallers(a, "b"), tcpCallers(a, "t")...)...)
	must.Make(t, load, 20)

	for round := range 3 {
		before := receivedBy(t, proxies)
		m.ControlPlane.Kill()
		must.Make(t, load, 100)
		must.Do(t, m.StartControlPlane(t.Context()))
		started := time.Now()
		synced(t, proxies...)
		t.Logf("round %d: all are connected %d ms after the control plane was ready", round, time.Since(started).Milliseconds())
		must.Make(t, load, 50)
		if diff := cmp.Diff(before, receivedBy(t, proxies)); diff != "" {
			t.Errorf("round %d: Envoys were sent something (-before +after):\n%s", round, diff)
		}
		if requests, resources := requestsAndResources(t, m); requests == 0 || resources != 0 {
			t.Errorf("round %d: the control plane has answered %v requests with %v resources, want some requests and no resources", round, requests, resources)
		}
		must.Do(t, b2.SetReady(false)) // the counter counts a real change
		endpoints(t, a, "b", b1)
		if _, resources := requestsAndResources(t, m); resources == 0 {
			t.Errorf("round %d: an endpoint changed, and no resource was sent", round)
		}
		must.Do(t, b2.SetReady(true))
		endpoints(t, a, "b", b1, b2)
		synced(t, proxies...)
	}
	must.Hold(t, load)
}

func receivedBy(t *testing.T, proxies []*harness.Proxy) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, p := range proxies {
		var err error
		all[p.Name], err = p.Received(t.Context())
		must.Do(t, err)
	}
	return all
}

// requestsAndResources returns the counts of ADS requests and sent resources since the start of the
// control plane.
func requestsAndResources(t *testing.T, m *harness.Machine) (requests, resources float64) {
	t.Helper()
	for name, value := range metrics(t, m) {
		switch {
		case strings.HasPrefix(name, "sonde_xds_requests_total{"):
			requests += value
		case strings.HasPrefix(name, "sonde_xds_resources_total{"):
			resources += value
		}
	}
	return requests, resources
}

// TestAgentWaits starts an agent while no control plane runs.
func TestAgentWaits(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	p := must.Prepare(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})
	must.Do(t, p.Declare())
	must.Do(t, p.StartApp(t.Context()))
	must.Do(t, p.MakeToken(t.Context()))
	m.ControlPlane.Kill()
	must.Do(t, p.RunAgent())
	must.Log(t, p.Agent, "failed to join, retrying")
	if _, err := m.Get(t.Context(), "http://"+p.Admin+"/livez"); err != nil {
		t.Errorf("the agent waits and is not live: %v", err)
	}
	_, err := m.Get(t.Context(), "http://"+p.Admin+"/readyz?verbose")
	if status := statusOf(err); status.Code != 503 || !strings.Contains(status.Body, "connection refused") {
		t.Errorf("the agent waits; its readiness is %v, want 503 and why", err)
	}
	must.Do(t, m.StartControlPlane(t.Context()))
	must.Do(t, p.WaitReady(t.Context()))
	synced(t, p)
}
