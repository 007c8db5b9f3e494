package xds

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/arrivals"
)

var profiles = flag.String("profiles", "", "`directory` to write CPU profiles of sonde-builder to")

// Topologies; the first is small enough for a quick check.
var (
	tiny    = topology{proxies: 50, services: 5}
	small   = topology{proxies: 300, services: 30}
	few     = topology{proxies: 1000, services: 100}
	many    = topology{proxies: 1000, services: 1000}
	crowded = topology{proxies: 5000, services: 100}
)

// each runs a benchmark of subjects in topologies.
func each(b *testing.B, sizes []topology, subjects []string, run func(b *testing.B, subject string, w topology)) {
	b.Helper()
	for _, w := range sizes {
		for _, subject := range subjects {
			b.Run(fmt.Sprintf("size=%s/subject=%s", w, subject), func(b *testing.B) { run(b, subject, w) })
		}
	}
}

var (
	subjects = []string{subjectBuilder, subjectSonde, subjectBroadcast, subjectSnapshot, subjectBare}
	sonde    = subjects[:2]
)

// BenchmarkChange changes one endpoint of a service that all proxies see.
func BenchmarkChange(b *testing.B) {
	each(b, []topology{tiny, small, few, many, crowded}, subjects[:4], func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		s.series(s.inTurn)
	})
}

// BenchmarkNarrowChange changes one endpoint of a service that ten proxies see.
func BenchmarkNarrowChange(b *testing.B) {
	each(b, []topology{tiny, few}, sonde, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		s.series(func(int) int { return w.narrow() })
	})
}

// BenchmarkOddProxies is BenchmarkChange with two more streams: one reads slowly, and one never sends an ACK.
func BenchmarkOddProxies(b *testing.B) {
	each(b, []topology{tiny, few}, sonde, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		s.fleet.openOdd()
		s.series(s.inTurn)
	})
}

// BenchmarkManyChanges makes a hundred changes a second, of all services in turn.
func BenchmarkManyChanges(b *testing.B) {
	const perSecond = 100
	each(b, []topology{{tiny.proxies, 10 * tiny.services}, many}, sonde, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		var expected []*arrivals.Arrivals
		var times arrivals.Changes
		var memory []float64
		cpu := s.cost(func() {
			ticker := time.NewTicker(time.Second / perSecond)
			defer ticker.Stop()
			for i := 0; b.Loop(); i++ {
				<-ticker.C
				if i%perSecond == 0 {
					memory = append(memory, s.rss())
				}
				expected = append(expected, s.expect(s.inTurn(i)))
				s.must(s.change(s.inTurn(i)))
			}
			for _, a := range expected {
				arrived, err := a.Wait(b.Context())
				s.must(err)
				s.must(s.changed())
				times = append(times, arrived)
			}
		})
		times.Report(b)
		b.ReportMetric(float64(cpu)/float64(len(times)), "cpu-ns/op")
		b.ReportMetric(memory[len(memory)/2], "middle-bytes")
		b.ReportMetric(memory[len(memory)-1], "end-bytes")
	})
}

// BenchmarkConnect connects all proxies at once without previous state, and measures the memory of that.
func BenchmarkConnect(b *testing.B) {
	each(b, []topology{tiny, few, many, crowded}, subjects, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		empty := s.restingRSS()
		var times arrivals.Changes
		cpu := s.cost(func() {
			for b.Loop() {
				b.StopTimer()
				s.fleet.forget()
				b.StartTimer()
				times = append(times, s.connect())
			}
		})
		times.Report(b)
		b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
		s.fleet.report(b)
		b.ReportMetric(empty, "empty-bytes")
		b.ReportMetric((s.restingRSS()-empty)/float64(w.proxies), "proxy-bytes")
	})
}

// BenchmarkReconnect reconnects all proxies at once with their previous state.
func BenchmarkReconnect(b *testing.B) {
	each(b, []topology{tiny, few}, []string{subjectBuilder, subjectSonde, subjectSnapshot}, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		var times arrivals.Changes
		cpu := s.cost(func() {
			s.fleet.forgetCounts()
			for b.Loop() {
				b.StopTimer()
				s.fleet.close()
				b.StartTimer()
				s.fleet.open()
				linked, err := s.fleet.linked.Wait(b.Context())
				s.must(err)
				times = append(times, linked)
			}
		})
		times.Report(b)
		b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
		s.fleet.report(b)
		s.changeOnce(0) // a proxy without its subscriptions would not receive this
	})
}

// BenchmarkIdle changes nothing for twenty seconds.
func BenchmarkIdle(b *testing.B) {
	each(b, []topology{tiny, few}, sonde, func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		s.connect()
		began := s.restingCPU()
		s.fleet.forgetCounts()
		for b.Loop() {
			s.wait(20 * time.Second)
		}
		b.ReportMetric(float64(s.cpu()-began)/float64(b.Elapsed()), "cores")
		s.fleet.report(b)
	})
}

// BenchmarkJoin has all agents join at once with tokens. The other benchmarks issue certificates of the same CA in
// memory, because sonde-cp records each certificate on disk.
func BenchmarkJoin(b *testing.B) {
	each(b, []topology{tiny, few, crowded}, sonde[1:], func(b *testing.B, subject string, w topology) {
		s := start(b, subject, w)
		var times arrivals.Changes
		cpu := s.cost(func() {
			for b.Loop() {
				times = append(times, s.join())
			}
		})
		times.Report(b)
		b.ReportMetric(float64(cpu)/float64(b.N*w.proxies), "cpu-ns/agent")
	})
}
