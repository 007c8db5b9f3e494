package faults

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
)

// What the agent may use at rest, in bytes.
const (
	maxRSSAnon = 6 << 20
	maxVmRSS   = 20 << 20
)

// TestMemoryOfAgents measures agents without the race detector, beside real Envoys and with a session to the real control
// plane.
func TestMemoryOfAgents(t *testing.T) {
	t.Parallel()
	programs, err := harness.Build(t.Context(), false)
	must(t, err)
	m := harness.New(t, harness.Options{Programs: programs})
	proxies := add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"})
	synced(t, proxies...)
	calls(t, proxies[0], "b")
	for _, p := range proxies {
		for range 20 { // the requests of a kubelet and a Prometheus in some minutes
			for _, path := range []string{"/readyz", "/livez", "/metrics"} {
				if _, err := m.Get(t.Context(), "http://"+p.Admin+path); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var most proc.Memory
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		for _, p := range proxies {
			now, err := proc.MemoryOf(p.Agent.PID())
			must(t, err)
			most = proc.Memory{RssAnon: max(most.RssAnon, now.RssAnon), VmRSS: max(most.VmRSS, now.VmRSS)}
		}
		<-ticker.C
	}
	t.Logf("sonde-dp at rest: RssAnon %.0f, VmRSS %.0f bytes", most.RssAnon, most.VmRSS)
	if most.RssAnon > maxRSSAnon || most.VmRSS > maxVmRSS {
		t.Errorf("RssAnon = %.0f, VmRSS = %.0f bytes, want at most %d and %d", most.RssAnon, most.VmRSS, maxRSSAnon, maxVmRSS)
	}
}
