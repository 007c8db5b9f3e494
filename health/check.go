package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// maxChanges limits the kept changes of a check.
const maxChanges = 8

// check is a Check with its last result.
type check struct {
	Check
	group   Group
	log     *slog.Logger
	metrics *metrics

	mu   sync.Mutex
	last Result // At is zero before the first run
	run  *run   // run in progress, or nil
}

// run is one run of a check.
type run struct {
	began   time.Time
	done    chan struct{} // closed on return
	overdue bool          // already counted as failed
}

// kept returns the last result while it is fresh.
func (c *check) kept() (Result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := c.Keep
	if c.last.Err != nil {
		keep = min(keep, DefaultKeep)
	}
	return c.last.clone(), !c.last.At.IsZero() && time.Since(c.last.At) < keep
}

// result returns a fresh result: the last one if it is fresh, or the result of the current or a new run. A run that
// ignores the end of its context has failed, and no other run starts until it returns. A caller that does not wait long
// enough gets the last result, if any.
func (c *check) result(ctx context.Context) Result {
	if kept, ok := c.kept(); ok {
		return kept
	}
	r := c.join()
	overdue := time.NewTimer(time.Until(r.began.Add(c.Timeout + graceTime)))
	defer overdue.Stop()
	select {
	case <-r.done:
	case <-overdue.C:
		c.fail(r, errOverdue(c.Timeout))
	case <-ctx.Done():
		c.fail(nil, fmt.Errorf("the caller did not wait for the check: %w", ctx.Err()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.clone()
}

// graceTime is how long a check may take to return after its context has ended.
const graceTime = 100 * time.Millisecond

func errOverdue(limit time.Duration) error { return fmt.Errorf("no result within %s", limit) }

// join returns the run in progress, or begins one.
func (c *check) join() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil {
		r := &run{began: time.Now(), done: make(chan struct{})}
		c.run = r
		go func() {
			defer close(r.done)
			err := c.safely()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.run = nil
			c.record(err, r.began)
		}()
	}
	return c.run
}

// safely runs the check and turns a panic into a failure, since a check must not end the program.
func (c *check) safely() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("health check panicked", "group", string(c.group), "check", c.Name, "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = c.Run(ctx)
	switch {
	case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil:
		return err
	case errors.Unwrap(err) == nil:
		return errOverdue(c.Timeout)
	}
	return fmt.Errorf("%w: %w", errOverdue(c.Timeout), err) // err has the step that takes so long
}

// fail records that a run has failed, if it is still in progress. Without a run, it records that there is no result
// yet.
func (c *check) fail(r *run, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r != nil && c.run == r && r.overdue: // other waiting callers have recorded it
		c.last.At = time.Now()
	case r != nil && c.run == r:
		r.overdue = true
		c.record(err, r.began)
	case r == nil && c.last.At.IsZero():
		c.last = Result{Group: c.group, Name: c.Name, Err: err, Informational: c.Informational}
	}
}

// record stores a result. The caller holds mu.
func (c *check) record(err error, began time.Time) {
	now := time.Now()
	first, failedBefore := c.last.At.IsZero(), c.last.Err != nil
	changes := c.last.Changes
	if first || failedBefore != (err != nil) {
		changes = append(changes, Change{At: now, Err: err})
		changes = changes[max(0, len(changes)-maxChanges):]
		c.tell(first, err)
	}
	c.last = Result{
		Group: c.group, Name: c.Name, Err: err, Informational: c.Informational, At: now, Took: now.Sub(began),
		Changes: changes,
	}
	c.metrics.record(&c.last)
}

// tell logs a change. At the start, checks that do not pass yet cause no warning.
func (c *check) tell(first bool, err error) {
	attributes := []any{"group", string(c.group), "check", c.Name}
	switch {
	case err != nil && first:
		c.log.Info("health check does not pass yet", append(attributes, "err", err)...)
	case err != nil:
		c.log.Warn("health check fails", append(attributes, "err", err)...)
	case !first:
		c.log.Info("health check passes", attributes...)
	}
}

func (r *Result) clone() Result {
	c := *r
	c.Changes = slices.Clone(r.Changes)
	return c
}

// loopWatch is the check of a loop.
type loopWatch struct {
	loop *heartbeat.Loop
	log  *slog.Logger

	told time.Time // the beat whose stall was logged; checks never run concurrently
}

func (w *loopWatch) check(context.Context) error {
	err := w.loop.Check()
	var stuck *heartbeat.StuckError
	if errors.As(err, &stuck) && !stuck.Since.Equal(w.told) {
		w.told = stuck.Since
		w.log.Error("loop is stuck", "loop", stuck.Loop, "since", stuck.Since, "limit", stuck.Limit, "stacks", stacks())
	}
	return err
}
