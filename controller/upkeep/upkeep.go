// Package upkeep keeps objects of the API server as they should be, whoever else writes them: it is the loop of a writer that follows them.
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
	// retry is how often what could not be written is tried again.
	retry = 10 * time.Second
	// requestTimeout of a write.
	requestTimeout = 10 * time.Second
)

// Limits on writes: another program may write something else whenever we have written.
const (
	writesPerSecond = 0.2
	writesBurst     = 5
)

// Keeper decides when to write. New makes one.
type Keeper struct {
	wake  run.Signal
	limit *rate.Limiter
}

// New returns a Keeper, for one Run.
func New() *Keeper {
	return &Keeper{wake: run.NewSignal(), limit: rate.NewLimiter(writesPerSecond, writesBurst)}
}

// Wake says that an object may have changed. It does not block, and may be called from any goroutine.
func (k *Keeper) Wake() {
	k.wake.Set()
}

// Work of a Keeper. Write and Failing are required.
type Work struct {
	// Write compares the objects with what they should be, and writes those that differ by Keeper.Request. A write that is not needed must do no
	// harm: what was read may be older than the last write.
	Write func(ctx context.Context) error
	// Failing is told of each new error of Write that is still there when it is tried again: one after a change may be that it is not read yet.
	Failing func(ctx context.Context, err error)
	// Changed receives when what the objects should be may have changed. Default: it never does.
	Changed <-chan struct{}
	// Loop watches Write. Default: none.
	Loop *heartbeat.Loop
}

// Run writes after each change, and each 10 s, until ctx ends, and then returns nil.
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

// Request makes a request that writes, with a deadline, unless there were too many lately: then the error says that another program does the
// opposite.
func (k *Keeper) Request(ctx context.Context, write func(ctx context.Context) error) error {
	if !k.limit.Allow() {
		return errors.New("another program keeps writing something else")
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return write(ctx)
}
