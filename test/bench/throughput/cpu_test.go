package throughput

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/test/harness"
)

// BenchmarkCPU makes small requests between two sidecars of a mesh in mode STRICT, 16 at once. envoy-µs/op is the CPU
// time of both Envoys, which varies less than the throughput if other processes run.
func BenchmarkCPU(b *testing.B) {
	m := newMachine(b, "STRICT")
	protocols := []string{"http", "http2", "tcp"}
	servers := map[string]*harness.Proxy{}
	for _, protocol := range protocols {
		servers[protocol] = startServer(b, m, protocol)
	}
	clients, err := m.Add(b.Context(), harness.ProxyOptions{Name: "client", Service: "client", Outbound: protocols})
	if err != nil {
		b.Fatal(err)
	}
	if err := harness.Poll(b.Context(), "the client to have all endpoints", clients[0].Synced); err != nil {
		b.Fatal(err)
	}
	for _, protocol := range protocols {
		b.Run("protocol="+protocol, func(b *testing.B) {
			client, end := newClient(protocol == "http2")
			defer end()
			var envoys [2]int
			for i, p := range []*harness.Proxy{clients[0], servers[protocol]} {
				if envoys[i], err = p.EnvoyPID(); err != nil {
					b.Fatal(err)
				}
			}
			ran := func() (us float64) {
				for _, pid := range envoys {
					cpu, _ := used(b, pid)
					us += float64(cpu.Ran.Microseconds())
				}
				return us
			}
			before := ran()
			var group errgroup.Group
			group.SetLimit(16)
			for b.Loop() {
				group.Go(func() error { return workload{}.ask(b.Context(), client, clients[0].Outbounds[protocol]) })
			}
			if err := group.Wait(); err != nil {
				b.Fatal(fmt.Errorf("ask by %s: %w", protocol, err))
			}
			b.ReportMetric((ran()-before)/float64(b.N), "envoy-µs/op")
		})
	}
}
