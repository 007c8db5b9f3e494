package podmetrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
)

// called is the number of services that are called, of any number of services.
const called = 10

// BenchmarkScrape scrapes a pod of a mesh each second. Its Envoy has clusters of all services, and calls
// some of them.
func BenchmarkScrape(b *testing.B) {
	programs, err := harness.Build(b.Context(), false)
	if err != nil {
		b.Fatal(err)
	}
	for _, services := range []int{10, 100, 500, 1000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			p := startPod(b, programs, services)
			idle := p.scrape(b)
			p.call(b)
			inUse, all := p.scrape(b), p.scrapeAll(b)
			agent, envoy := p.proxy.Agent.PID(), p.envoyPID(b)
			rest, err := proc.RestingRSS(b.Context(), agent)
			if err != nil {
				b.Fatal(err)
			}
			envoyRest, err := proc.RestingRSS(b.Context(), envoy)
			if err != nil {
				b.Fatal(err)
			}
			before := [2]time.Duration{p.ran(b, agent), p.ran(b, envoy)}
			most := 0.0
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for b.Loop() {
				p.scrape(b)
				m, err := memorytest.Of(agent)
				if err != nil {
					b.Fatal(err)
				}
				most = max(most, m.RssAnon)
				<-tick.C
			}
			cpu := func(i, pid int) float64 { return float64((p.ran(b, pid) - before[i]).Microseconds()) / float64(b.N) }
			b.ReportMetric(cpu(0, agent), "agent-cpu-µs/op")
			b.ReportMetric(cpu(1, envoy), "envoy-cpu-µs/op")
			b.ReportMetric(rest, "rest-RssAnon-bytes")
			b.ReportMetric(envoyRest, "envoy-RssAnon-bytes")
			b.ReportMetric(float64(p.ready), "ready-ns")
			b.ReportMetric(most-rest, "more-RssAnon-bytes")
			b.ReportMetric(float64(idle.series), "idle-series")
			b.ReportMetric(float64(inUse.series), "series")
			b.ReportMetric(float64(all.series), "all-series")
			b.ReportMetric(float64(inUse.bytes), "page-bytes")
			b.ReportMetric(0, "ns/op") // always a second
		})
	}
}
