// Package arrivals records when each of many proxies has reached a point, and reports such times over several
// rounds.
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

// Arrivals records when each of some proxies has reached a point, such as the ACK of a change. A service only changes
// again after all proxies have sent the ACK of its last change, so that no change is skipped for a newer one.
type Arrivals struct {
	began   time.Time
	version string         // of the expected resource; "" without one
	first   int            // index of the first proxy
	after   []atomic.Int64 // of each proxy, in nanoseconds; 0 before
	missing atomic.Int64   // number of proxies
	done    chan struct{}
}

// New starts now, and expects the proxies from first to last, exclusive. version is the generator's version of the
// expected resource, or "" if no resource is expected.
func New(first, last int, version string) *Arrivals {
	a := &Arrivals{
		began: time.Now(), version: version, first: first, after: make([]atomic.Int64, last-first), done: make(chan struct{}),
	}
	a.missing.Store(int64(last - first))
	return a
}

// Expects reports whether a waits for a proxy.
func (a *Arrivals) Expects(proxy int) bool {
	i := proxy - a.first
	return 0 <= i && i < len(a.after) && a.after[i].Load() == 0
}

// Is compares versions. Sonde's version is a prefix of the hash that go-control-plane uses.
func (a *Arrivals) Is(version []byte) bool { return bytes.HasPrefix(version, []byte(a.version)) }

// Arrive records a proxy's first arrival.
func (a *Arrivals) Arrive(proxy int) {
	if a.after[proxy-a.first].CompareAndSwap(0, int64(time.Since(a.began))) && a.missing.Add(-1) == 0 {
		close(a.done)
	}
}

// Wait waits for all proxies, and returns their sorted durations.
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

// Changes has the durations of changes: for each change, the sorted durations of its proxies.
type Changes [][]time.Duration

// Report reports medians over the changes, and the 99th percentile of the time until the last proxy.
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
