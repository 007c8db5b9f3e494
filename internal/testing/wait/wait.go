// Package wait lets a test wait for another goroutine or process as long as the test may run, so that a slow machine
// causes no failure.
package wait

import (
	"context"
	"errors"
	"testing"
	"time"
)

const (
	// interval is the time between two checks.
	interval = 5 * time.Millisecond
	// reserve is the time kept to report the failure and to clean up, before go test kills the program.
	reserve = 30 * time.Second
	// virtualLimit bounds a wait in a bubble of testing/synctest, where the deadline of go test is decades away.
	virtualLimit = 10 * time.Minute
)

// realTime is before the time of every real test, and after the time of every bubble, whose clock starts in the year
// 2000.
var realTime = time.Date(2020, time.January, 1, 0, 0, 0, 0, time.UTC)

var errNotYet = errors.New("not yet")

// Until calls check until it returns nil. If its time is over, the test fails with what and the last error: shortly
// before the deadline of go test, or after ten minutes in a bubble of testing/synctest. An empty what adds nothing to
// the error.
func Until(t testing.TB, what string, check func() error) {
	t.Helper()
	if what != "" {
		what += ": "
	}
	began, done := time.Now(), Context(t).Done()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-done:
			t.Fatalf("not within %s: %s%v", time.Since(began).Round(interval), what, err)
		}
	}
}

// For is Until for a condition.
func For(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Until(t, what, func() error {
		if !condition() {
			return errNotYet
		}
		return nil
	})
}

// Context returns a context that ends after the time for which Until waits, or with the test.
func Context(t testing.TB) context.Context {
	t.Helper()
	deadline := time.Now().Add(virtualLimit)
	if time.Now().After(realTime) { // Deadline must not be called in a bubble
		d, ok := t.(interface{ Deadline() (time.Time, bool) }) // a benchmark has no deadline
		if !ok {
			return t.Context()
		}
		at, bounded := d.Deadline()
		if !bounded {
			return t.Context()
		}
		deadline = at.Add(-reserve)
	}
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}
