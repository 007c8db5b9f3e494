package agent

import (
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/must"
)

// atRest is the memory limit of a guarded agent at rest, which runs once per pod. The goal is 6 MiB of RssAnon; the
// Go runtime's share varies by 150 KiB between starts.
var atRest = memorytest.Memory{RssAnon: 6<<20 + 256<<10, VmRSS: 20 << 20}

// TestMemoryWithGuard measures guard and worker together.
func TestMemoryWithGuard(t *testing.T) {
	tests := map[string]struct{ withLB bool }{"and probes": {}, "and a port for load balancers": {withLB: true}}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cp := newControlPlane(t, bootstrap(t, ports{}))
			cp.Start()
			port := portOf(t, must.FreeAddresses(t, 1)[0])
			args := []string{}
			if tc.withLB {
				args = append(args, "--lb-health-port="+port)
			}
			p, url := startGuarded(t, cp, args...)
			asked := []string{url, "http://" + p.admin + "/readyz", "http://" + p.admin + "/livez", "http://" + p.admin + "/metrics"}
			if tc.withLB {
				asked = append(asked, "http://127.0.0.1:"+port+"/healthz", "http://127.0.0.1:"+port+"/livez")
			}
			for range 100 { // as many requests as a kubelet, a Prometheus and a load balancer make in some minutes
				for _, question := range asked {
					must.Do(t, probe(t, question))
				}
			}
			var most memorytest.Memory
			for range 25 {
				guard, err := memorytest.Of(p.cmd.Process.Pid)
				must.Do(t, err)
				worker, err := memorytest.Of(p.worker())
				must.Do(t, err)
				most = most.Max(guard.And(worker))
				time.Sleep(200 * time.Millisecond)
			}
			t.Logf("sonde-dp at rest: %v", most)
			if most.Exceeds(atRest) {
				t.Errorf("sonde-dp at rest: %v, want at most %v", most, atRest)
			}
		})
	}
}
