package faults

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// atRest is the agent's memory limit at rest.
var atRest = memorytest.Memory{RssAnon: 6 << 20, VmRSS: 20 << 20}

// TestMemoryOfAgents measures agents without the race detector, beside real Envoys and connected to a real control
// plane.
func TestMemoryOfAgents(t *testing.T) {
	t.Parallel()
	programs, err := harness.Build(t.Context(), false)
	must.Do(t, err)
	m := harness.New(t, harness.Options{Programs: programs})
	proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"})
	synced(t, proxies...)
	calls(t, proxies[0], "b")
	for _, p := range proxies {
		for range 20 { // as many requests as a kubelet and a Prometheus make in some minutes
			for _, path := range []string{"/readyz", "/livez", "/metrics"} {
				if _, err := m.Get(t.Context(), "http://"+p.Admin+path); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var most memorytest.Memory
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		for _, p := range proxies {
			now, err := memorytest.Of(p.Agent.PID())
			must.Do(t, err)
			most = most.Max(now)
		}
		<-ticker.C
	}
	t.Logf("sonde-dp at rest: %v", most)
	if most.Exceeds(atRest) {
		t.Errorf("sonde-dp at rest: %v, want at most %v", most, atRest)
	}
}
