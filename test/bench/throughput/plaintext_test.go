package throughput

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/bench/proc"
)

// BenchmarkPlaintext makes requests in plain text to the inbounds of a mesh in mode PERMISSIVE, one after the other,
// which Envoy records for sondectl check strict. envoy-µs/op is Envoy's CPU time, and envoy-KiB the growth of its
// memory.
func BenchmarkPlaintext(b *testing.B) {
	m := newMachine(b, "PERMISSIVE")
	for _, protocol := range []string{"http", "tcp"} {
		p := startServer(b, m, protocol)
		for _, connections := range []string{"kept", "new"} {
			b.Run(fmt.Sprintf("protocol=%s/connections=%s", protocol, connections), func(b *testing.B) {
				client, end := newClient(false)
				defer end()
				client.Transport.(*http.Transport).DisableKeepAlives = connections == "new"
				ask := func() {
					if err := (workload{}).ask(b.Context(), client, p.Inbound); err != nil {
						b.Fatal(err)
					}
				}
				ask()
				envoy, err := p.EnvoyPID()
				if err != nil {
					b.Fatal(err)
				}
				cpu, memory := used(b, envoy)
				for b.Loop() {
					ask()
				}
				cpuAfter, memoryAfter := used(b, envoy)
				b.ReportMetric(float64(cpuAfter.Since(cpu).Ran.Microseconds())/float64(b.N), "envoy-µs/op")
				b.ReportMetric((memoryAfter.RssAnon-memory.RssAnon)/(1<<10), "envoy-KiB")
			})
		}
	}
}

func used(b *testing.B, pid int) (proc.Time, memorytest.Memory) {
	b.Helper()
	cpu, errCPU := proc.CPU(pid)
	memory, errMemory := memorytest.Of(pid)
	if err := errors.Join(errCPU, errMemory); err != nil {
		b.Fatal(err)
	}
	return cpu, memory
}
