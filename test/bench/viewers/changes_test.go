package viewers

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
)

// shown is how long it takes until a viewer has a change.
type shown struct {
	mu    sync.Mutex
	since map[string]time.Time // by the reason in the change
	took  []time.Duration
}

// changes has agents report another verdict, one after the other, so many per second until stop is called.
func (f *fleet) changes(perSecond int) (stop func()) {
	f.shown = &shown{since: map[string]time.Time{}}
	if perSecond == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(f.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; run.Sleep(ctx, time.Second/time.Duration(perSecond)) == nil; i++ {
			reason := fmt.Sprint("change ", i)
			f.shown.mu.Lock()
			f.shown.since[reason] = time.Now()
			f.shown.mu.Unlock()
			f.change[i%len(f.change)] <- verdicts(reason)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// seen records which changes a viewer has.
func (f *fleet) seen(proxies []*adminv1.Proxy) {
	f.shown.mu.Lock()
	defer f.shown.mu.Unlock()
	for _, p := range proxies {
		for _, probe := range p.GetVerdicts().GetProbes() {
			if since, ok := f.shown.since[probe.GetReason()]; ok {
				delete(f.shown.since, probe.GetReason())
				f.shown.took = append(f.shown.took, time.Since(since))
			}
		}
	}
}

// forget forgets the times until now.
func (f *fleet) forget() {
	f.shown.mu.Lock()
	defer f.shown.mu.Unlock()
	f.shown.took = nil
}

func (f *fleet) report(b *testing.B) {
	f.shown.mu.Lock()
	defer f.shown.mu.Unlock()
	if len(f.shown.took) > 0 {
		slices.Sort(f.shown.took)
		b.ReportMetric(arrivals.Quantile(f.shown.took, 0.5).Seconds(), "median-s")
		b.ReportMetric(arrivals.Quantile(f.shown.took, 1).Seconds(), "max-s")
	}
}
