package faults

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// What the agent may use at rest, in KiB.
const (
	maxRSSAnon = 6 << 10
	maxVmRSS   = 20 << 10
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
	highest := map[string]int{}
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for range 20 {
		for _, p := range proxies {
			for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/status", p.Agent.PID()))) {
				key, value, _ := strings.Cut(line, ":")
				if key == "RssAnon" || key == "VmRSS" {
					kib, err := strconv.Atoi(strings.Fields(value)[0])
					must(t, err)
					highest[key] = max(highest[key], kib)
				}
			}
		}
		<-ticker.C
	}
	t.Logf("sonde-dp at rest: RssAnon %d KiB, VmRSS %d KiB", highest["RssAnon"], highest["VmRSS"])
	if got := highest["RssAnon"]; got == 0 || got > maxRSSAnon {
		t.Errorf("RssAnon = %d KiB, want at most %d", got, maxRSSAnon)
	}
	if got := highest["VmRSS"]; got == 0 || got > maxVmRSS {
		t.Errorf("VmRSS = %d KiB, want at most %d", got, maxVmRSS)
	}
}
