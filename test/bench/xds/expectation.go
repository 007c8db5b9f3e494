package main

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// expectation is a version of a service's endpoints that proxies are about to get. A service only changes again when all of
// them have the last change, so no version is skipped for a newer one.
type expectation struct {
	version     string
	first, last int // of the proxies
	firstSeen   atomic.Int64
	times       []atomic.Int64 // of each proxy's ACK
	missing     atomic.Int64   // proxies
	once        sync.Once
	done        chan struct{}
}

// is compares versions. Sonde's version is the beginning of the hash that go-control-plane uses as a whole.
func (e *expectation) is(version []byte) bool {
	return len(version) >= len(e.version) && string(version[:len(e.version)]) == e.version
}

func (e *expectation) seen() {
	if e.firstSeen.Load() == 0 {
		e.firstSeen.CompareAndSwap(0, now())
	}
}

func (e *expectation) arrive(proxy int) {
	if e.times[proxy-e.first].CompareAndSwap(0, now()) && e.missing.Add(-1) == 0 {
		e.once.Do(func() { close(e.done) })
	}
}

func (f *fleet) expect(o order) {
	e := &expectation{version: o.Version, first: o.First, last: o.Last, times: make([]atomic.Int64, o.Last-o.First), done: make(chan struct{})}
	e.missing.Store(int64(o.Last - o.First))
	f.pending = append(f.pending, e)
	watched := *f.watched.Load()
	if slot := watched[o.Name]; slot != nil {
		slot.Store(e)
		return
	}
	watched = maps.Clone(watched)
	slot := &atomic.Pointer[expectation]{}
	slot.Store(e)
	watched[o.Name] = slot
	f.watched.Store(&watched)
}

// arrival is when a change reached the proxies, by the shared clock (see now), in nanoseconds.
type arrival struct {
	// Seen is when the first proxy had read the change. The others are times of ACKs.
	Seen, P50, P99, Last int64
	Missing              int
}

// await waits for all expected changes, with one limit for all together.
func (f *fleet) await() ([]arrival, error) {
	deadline := time.NewTimer(waitAtMost)
	defer deadline.Stop()
	late := false
	all := make([]arrival, 0, len(f.pending))
	for _, e := range f.pending {
		if !late {
			select {
			case <-e.done:
			case <-deadline.C:
				late = true
			}
		}
		all = append(all, e.arrival())
	}
	f.pending = nil
	return all, nil
}

func (e *expectation) arrival() arrival {
	times := make([]int64, 0, len(e.times))
	for i := range e.times {
		if t := e.times[i].Load(); t > 0 {
			times = append(times, t)
		}
	}
	slices.Sort(times)
	return arrival{
		Seen: e.firstSeen.Load(), P50: quantile(times, 0.5), P99: quantile(times, 0.99), Last: quantile(times, 1),
		Missing: len(e.times) - len(times),
	}
}
