// Package waittest is for tests: it waits for what another goroutine or process does.
package waittest

import (
	"errors"
	"testing"
	"time"
)

// interval is the time between two checks.
const interval = 5 * time.Millisecond

var errNotYet = errors.New("not yet")

// Until calls check until it returns nil. After limit the test fails, and says what has not come, "" if the last error says it, and that error.
func Until(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	if what != "" {
		what += ": "
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s%v", limit, what, err)
		}
	}
}

// Holds is Until for a condition.
func Holds(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	Until(t, limit, what, func() error {
		if !condition() {
			return errNotYet
		}
		return nil
	})
}
