// Package upkeep keeps objects of the API server in a wanted state, even if other programs change them. It is the loop
// of a writer that also watches the objects.
package upkeep

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// retry is the interval of retries after a failed write.
	retry = 10 * time.Second
	// requestTimeout bounds a write.
	requestTimeout = 10 * time.Second
)

// Limits on writes, since another program may revert each of our writes.
const (
	writesPerSecond = 0.2
	writesBurst     = 5
)

// Keeper decides when to write. Create it with New.
type Keeper struct {
	wake  run.Signal
	limit *rate.Limiter
}

// New returns a Keeper, for one Run.
func New() *Keeper {
	return &Keeper{wake: run.NewSignal(), limit: rate.NewLimiter(writesPerSecond, writesBurst)}
}

// Wake says that an object may have changed. It does not block, and is safe for concurrent use.
func (k *Keeper) Wake() {
	k.wake.Set()
}

// Work of a Keeper. Write and Failing are required.
type Work struct {
	// Write compares the objects with the wanted state, and writes different ones with Keeper.Request. An unnecessary
	// write must be harmless: the object may have been read before the last write.
	Write func(ctx context.Context) error
	// Failing is called for each new error of Write that is still there in the retry: an error right after a change may
	// only mean that the watch is behind.
	Failing func(ctx context.Context, err error)
	// Changed receives when the wanted state may have changed. Default: never.
	Changed <-chan struct{}
	// Loop watches Write. Default: none.
	Loop *heartbeat.Loop
}

// Run writes after each change, and every 10 s, until ctx ends, and then returns nil.
func (k *Keeper) Run(ctx context.Context, w Work) error {
	ticker, known := time.NewTicker(retry), ""
	defer ticker.Stop()
	for {
		again := false
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-w.Changed:
		case <-ticker.C:
			again = true
		}
		w.Loop.Begin()
		err := w.Write(ctx)
		w.Loop.End()
		switch {
		case err == nil:
			known = ""
		case again && err.Error() != known && ctx.Err() == nil:
			known = err.Error()
			w.Failing(ctx, err)
		}
	}
}

// Request calls write with a deadline. After too many writes in a short time it returns an error instead, since another
// program probably reverts them.
func (k *Keeper) Request(ctx context.Context, write func(ctx context.Context) error) error {
	if !k.limit.Allow() {
		return errors.New("another program keeps reverting the writes")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return write(ctx)
}
