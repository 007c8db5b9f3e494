package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// lookAgainAfter is the interval of checks, while the nodes are seen, for dependants that a previous leader or the
// Dependency Watchdog left scaled down.
const lookAgainAfter = time.Minute

// worker scales in parallel to the probes, which can stop it. Only the cluster's goroutine calls it.
type worker struct {
	scaler *scale.Scaler

	direction scale.Direction // direction of the current or last run
	cancel    context.CancelFunc
	running   sync.WaitGroup
	done      chan struct{} // closed at the end of a run; nil before the first
	clean     time.Time     // time since which nothing has to be scaled up
}

// turn scales the dependants in a direction, if any. It first stops a run in the other direction. pending means that
// some dependants are known to be scaled down.
func (w *worker) turn(ctx context.Context, to scale.Direction, dependants []config.Dependant, pending bool) {
	if w.busy() && to == w.direction {
		return
	}
	if to != w.direction || to == "" {
		w.stop()
		w.direction, w.clean = to, time.Time{}
	}
	if w.scaler.DryRun && w.done != nil && to == w.direction && !w.clean.IsZero() {
		return // a dry run has already reported it
	}
	if to == "" || to == scale.Up && !pending && !w.clean.IsZero() && time.Since(w.clean) < lookAgainAfter {
		return
	}
	w.clean = time.Now()
	ctx, w.cancel = context.WithCancel(ctx)
	done := make(chan struct{})
	w.done = done
	w.running.Go(func() {
		defer close(done)
		_ = w.scaler.Run(ctx, to, dependants) // the run has reported errors, and the next turn retries
	})
}

func (w *worker) busy() bool {
	if w.done == nil {
		return false
	}
	select {
	case <-w.done:
		return false
	default:
		return true
	}
}

// stop ends a run, and waits for it.
func (w *worker) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.running.Wait()
}
