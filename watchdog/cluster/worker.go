package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// lookAgainAfter is how often it is looked for what a leader before this one, or the Dependency Watchdog, has left scaled down, while the nodes are seen.
const lookAgainAfter = time.Minute

// worker scales beside the probes, so that these go on meanwhile, and can have it stop. Only the goroutine of the cluster calls it.
type worker struct {
	scaler *scale.Scaler

	direction scale.Direction // of what runs, or has run last
	cancel    context.CancelFunc
	running   sync.WaitGroup
	done      chan struct{} // closed when it has ended; nil before the first
	clean     time.Time     // since when there has been nothing to scale up
}

// turn has the dependants be scaled in a direction, or nothing be scaled. What runs in another direction ends before that. pending says that some are
// known to be scaled down.
func (w *worker) turn(ctx context.Context, to scale.Direction, dependants []config.Dependant, pending bool) {
	if w.busy() && to == w.direction {
		return
	}
	if to != w.direction || to == "" {
		w.stop()
		w.direction, w.clean = to, time.Time{}
	}
	if w.scaler.DryRun && w.done != nil && to == w.direction && !w.clean.IsZero() {
		return // it was told what would be done
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
		_ = w.scaler.Run(ctx, to, dependants) // what has failed is reported, and done anew by the next turn
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

// stop ends what runs, and waits for it.
func (w *worker) stop() {
	if w.cancel != nil {
		w.cancel()
	}
	w.running.Wait()
}
