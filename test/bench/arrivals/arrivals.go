// Package arrivals notes when each of many proxies has got to a point, and reports such times of several rounds.
package arrivals

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// waitAtMost bounds each wait for the proxies.
const waitAtMost = 2 * time.Minute

// Arrivals notes when each of some proxies has reached a point, such as the ACK of a change. A service only changes again when all have
// sent the ACK of its last change, so that no change is skipped for a newer one.
type Arrivals struct {
	began   time.Time
	version string         // of what is to arrive; "" where that is not a resource
	first   int            // of the proxies
	after   []atomic.Int64 // of each proxy, in nanoseconds; 0 before
	missing atomic.Int64   // proxies
	done    chan struct{}
}

// New begins now, and expects the proxies from first to last, exclusive. version is that of the resource that is to arrive, as the generator makes it; "" where
// that is not a resource.
func New(first, last int, version string) *Arrivals {
	a := &Arrivals{began: time.Now(), version: version, first: first, after: make([]atomic.Int64, last-first), done: make(chan struct{})}
	a.missing.Store(int64(last - first))
	return a
}

// Expects says whether it waits for a proxy.
func (a *Arrivals) Expects(proxy int) bool {
	i := proxy - a.first
	return 0 <= i && i < len(a.after) && a.after[i].Load() == 0
}

// Is compares versions. Sonde's version is the beginning of the hash that go-control-plane uses as a whole.
func (a *Arrivals) Is(version []byte) bool { return bytes.HasPrefix(version, []byte(a.version)) }

// Arrive notes that a proxy has arrived, the first time.
func (a *Arrivals) Arrive(proxy int) {
	if a.after[proxy-a.first].CompareAndSwap(0, int64(time.Since(a.began))) && a.missing.Add(-1) == 0 {
		close(a.done)
	}
}

// Wait waits for all, and returns how long each took, sorted.
func (a *Arrivals) Wait(ctx context.Context) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, waitAtMost)
	defer cancel()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("%d of %d proxies have not arrived: %w", a.missing.Load(), len(a.after), ctx.Err())
	}
	all := make([]time.Duration, len(a.after))
	for i := range a.after {
		all[i] = time.Duration(a.after[i].Load())
	}
	slices.Sort(all)
	return all, nil
}

// Quantile of a sorted list.
func Quantile(sorted []time.Duration, p float64) time.Duration {
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// Changes are the times of changes: each the times of its proxies, sorted.
type Changes [][]time.Duration

// Report reports medians over the changes, and how long the slowest hundredth of them took to reach the last proxy.
func (c Changes) Report(b *testing.B) {
	b.Helper()
	of := func(p float64) []time.Duration {
		all := make([]time.Duration, len(c))
		for i, times := range c {
			all[i] = Quantile(times, p)
		}
		return slices.Sorted(slices.Values(all))
	}
	for unit, value := range map[string]time.Duration{
		"first-ns": Quantile(of(0), 0.5), "p50-ns": Quantile(of(0.5), 0.5), "p99-ns": Quantile(of(0.99), 0.5),
		"last-ns": Quantile(of(1), 0.5), "last-p99-ns": Quantile(of(1), 0.99),
	} {
		b.ReportMetric(float64(value), unit)
	}
}
