package restarts

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

// The size of a bad day: 5,000 pods of 500 Deployments.
const (
	benchWorkloads = 500
	benchReplicas  = 10
)

// newBench returns an API server with all pods, and their names.
func newBench(b *testing.B) (a *api, pods []string) {
	b.Helper()
	a = newAPI(b, neverOpen)
	for i := range benchWorkloads {
		name := fmt.Sprint("web", i)
		a.deploy(name, benchReplicas)
		for j := range benchReplicas {
			pods = append(pods, fmt.Sprint(name, "-", j))
		}
	}
	return a, pods
}

// BenchmarkRestarts has the liveness of all pods fail within a second, and looks at the leader for ten more.
func BenchmarkRestarts(b *testing.B) {
	var decided, first, heap, most float64
	for b.Loop() {
		b.StopTimer()
		a, pods := newBench(b)
		before := heapBytes()
		b.StartTimer()
		stop := a.lead(1)
		began := time.Now()
		each := time.NewTicker(time.Second / 100)
		for part := range slices.Chunk(pods, len(pods)/100) {
			a.fail(part...)
			<-each.C
		}
		each.Stop()
		failed := time.Now()
		for round := a.r.Round(); round == nil || len(round.Decisions) < len(pods); round = a.r.Round() {
			<-time.After(time.Millisecond)
		}
		decided += time.Since(failed).Seconds()
		<-time.After(time.Until(failed.Add(10 * time.Second)))
		heap += (heapBytes() - before) / float64(len(pods))
		sent := slices.DeleteFunc(a.sent(), func(r request) bool { return r.what == "GET restartgrants" })
		first += sent[0].at.Sub(began).Seconds()
		most = max(most, float64(mostInASecond(sent)))
		stop()
	}
	n := float64(b.N)
	b.ReportMetric(1000*decided/n, "ms-to-decisions")
	b.ReportMetric(1000*first/n, "ms-to-first-grant")
	b.ReportMetric(heap/n/1024, "KiB/pod")
	b.ReportMetric(most, "requests-in-a-second")
}

func heapBytes() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// mostInASecond returns how many requests there were within any second.
func mostInASecond(all []request) (most int) {
	for i, j := 0, 0; j < len(all); j++ {
		for all[j].at.Sub(all[i].at) >= time.Second {
			i++
		}
		most = max(most, j-i+1)
	}
	return most
}

// BenchmarkRound is one round of decisions of the leader while all pods ask, and all but a few wait to be written.
func BenchmarkRound(b *testing.B) {
	a, pods := newBench(b)
	a.fail(pods...)
	l := newLeader(a.r, 1)
	if err := l.read(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l.decide(b.Context(), time.Now())
	}
}
