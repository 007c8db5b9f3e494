//go:build soak

package soak

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
)

const (
	// rounds is the number of rounds in which all proxies connect, receive changes, and disconnect.
	rounds = 6
	// batches of changes per round. Each change is reverted.
	batches, changesPerBatch = 5, 10
	// unread is how long the store may take to read a file.
	unread = 300 * time.Millisecond
)

// leaks connects and disconnects all proxies several times, and checks that the control plane keeps nothing of
// them.
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

// fill reconnects all proxies, and makes changes that it finally reverts.
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
	const steady = 20 // consecutive checks in which no goroutine ends
	least, looks := 0.0, 0
	for began := time.Now(); looks < steady; looks++ {
		now := s.metrics()
		streams, goroutines := now["sonde_xds_streams"], now["go_goroutines"]
		if streams > 0 || least == 0 || goroutines < least {
			least, looks = goroutines, 0
		}
		if time.Since(began) > settleWithin {
			s.Fatalf("all proxies have disconnected, and %s later %v streams exist", settleWithin, streams)
		}
		s.wait(poll)
	}
	heap := s.heap()
	memory, err := memorytest.Of(s.machine.ControlPlane.PID())
	s.must(err)
	return usage{least, heap, memory.RssAnon}
}

func (s *soak) metrics() map[string]float64 {
	now, err := s.machine.Metrics(s.Context())
	s.must(err)
	return now
}

// heap returns the size of the live heap. No API triggers a garbage collection in the control plane, but reading its
// metrics allocates memory. The minimum after two collections is live.
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
