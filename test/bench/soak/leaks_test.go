package soak

import (
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/proc"
)

const (
	// rounds is the number of rounds in which all proxies come, see changes, and go.
	rounds = 6
	// batches of changes per round. Each change is undone.
	batches, changesPerBatch = 5, 10
	// unread is how long the store may take to read a file.
	unread = 300 * time.Millisecond
	// heapSlack is how much the live heap may grow in half of the rounds, in bytes: in a run of the usual size less than 1 KiB
	// for each proxy that came. memorySlack is the same for the process, which keeps memory that it once had.
	heapSlack, memorySlack = 512 << 10, 8 << 20
	// goroutineSlack is for goroutines that serve the metrics, whose number varies.
	goroutineSlack = 4
)

// usage is what the control plane has when no proxy is connected.
type usage struct{ goroutines, heap, memory float64 }

// leaks has all proxies come and go several times, and checks that nothing of them remains in the control plane.
func (s *soak) leaks() {
	s.note("looking for leaks")
	s.events = nil
	var all []usage
	for round := range rounds + 1 {
		if round > 0 {
			s.fill()
		}
		s.empty()
		all = append(all, s.usageAtRest())
		s.Logf("the control plane at rest after %d rounds: %s", round, all[round])
	}
	s.must(growth(all[1:]))
}

// growth compares the first half of the rounds with the second. The round before them does not count, since some things are
// made when they are first needed. Single rounds do not count either, since a process returns memory when it wants to.
func growth(all []usage) error {
	first, second := all[:len(all)/2], all[len(all)/2:]
	before, after := first[0], second[0]
	for _, l := range first {
		before = usage{max(before.goroutines, l.goroutines), min(before.heap, l.heap), min(before.memory, l.memory)}
	}
	for _, l := range second {
		after = usage{min(after.goroutines, l.goroutines), min(after.heap, l.heap), min(after.memory, l.memory)}
	}
	if after.goroutines > before.goroutines+goroutineSlack || after.heap > before.heap+heapSlack || after.memory > before.memory+memorySlack {
		return fmt.Errorf("the control plane keeps what is of proxies that are gone: %s in the first %d rounds, %s in the others", before, len(first), after)
	}
	return nil
}

// fill connects all proxies anew, and makes changes that are undone in the end.
func (s *soak) fill() {
	for _, m := range s.members {
		m.join(true)
	}
	put := func(o mesh.Object) {
		file := s.writer.fileOf[o.Key()]
		s.writer.set(o, file)
		s.writer.write(file, atOnce)
	}
	for range batches {
		before := map[mesh.Key]mesh.Object{}
		for range changesPerBatch {
			o := s.anyDataplane()
			if before[o.Key()] == nil {
				before[o.Key()] = s.writer.objects[o.Key()]
			}
			put(o)
		}
		s.wait(unread)
		for _, o := range before {
			put(o)
		}
		s.wait(unread)
	}
	s.settle()
}

// usageAtRest waits until there is no stream and the number of goroutines no longer falls.
func (s *soak) usageAtRest() usage {
	const steady = 20 // checks in which no goroutine ends
	least, looks := 0.0, 0
	for began := time.Now(); looks < steady; looks++ {
		now := s.metrics()
		streams, goroutines := now["sonde_xds_streams"], now["go_goroutines"]
		if streams > 0 || least == 0 || goroutines < least {
			least, looks = goroutines, 0
		}
		if time.Since(began) > settleWithin {
			s.Fatalf("all proxies have disconnected, and %s later there are %v streams", settleWithin, streams)
		}
		s.wait(poll)
	}
	heap := s.heap()
	memory, err := proc.MemoryOf(s.machine.ControlPlane.PID())
	s.must(err)
	return usage{least, heap, memory.RssAnon}
}

func (s *soak) metrics() map[string]float64 {
	now, err := s.machine.Metrics(s.Context())
	s.must(err)
	return now
}

// heap returns the size of the live heap. The control plane cannot be told to collect its garbage, but reading its metrics makes some. The
// least that it has after two collections is live.
func (s *soak) heap() float64 {
	first, least := -1.0, 0.0
	for range 5000 {
		now := s.metrics()
		cycles, heap := now["go_gc_duration_seconds_count"], now["go_memstats_heap_alloc_bytes"]
		switch {
		case first < 0:
			first = cycles
		case cycles >= first+2 && (least == 0 || heap < least):
			least = heap
		}
		if cycles >= first+4 {
			return least
		}
	}
	s.Fatal("the control plane collects no garbage")
	return 0
}

func (l usage) String() string {
	return fmt.Sprintf("%.0f goroutines, %.2f MiB live, %.1f MiB of memory", l.goroutines, l.heap/(1<<20), l.memory/(1<<20))
}
