// Package heartbeat is a watchdog for loops. A loop says when it begins to work and when it waits again: one that waits is idle and fine,
// and one that works on a single turn for longer than its limit is stuck.
package heartbeat

import (
	"fmt"
	"sync"
	"time"
)

// Loop is one goroutine that does one thing after another. Its methods may be called on nil, and then do nothing: a loop need not be
// watched.
type Loop struct {
	name  string
	limit time.Duration

	mu   sync.Mutex
	beat time.Time // of the turn that goes on; zero while the loop waits
}

// New returns a loop that waits. A turn, or what is between two beats of it, may take up to the limit.
func New(name string, limit time.Duration) *Loop { return &Loop{name: name, limit: limit} }

// Begin says that a turn begins. End, or the next Begin, ends it.
func (l *Loop) Begin() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat = time.Now()
}

// Beat says that the turn makes progress, so that a long one is not taken for a stuck one.
func (l *Loop) Beat() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.beat.IsZero() {
		l.beat = time.Now()
	}
}

// End says that the turn is over, and that the loop waits for the next one.
func (l *Loop) End() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat = time.Time{}
}

// StuckError says that a loop has not beaten for longer than its limit.
type StuckError struct {
	Loop  string
	Since time.Time // its last beat
	Limit time.Duration
}

// Error implements error.
func (s *StuckError) Error() string {
	return fmt.Sprintf("loop %q has made no progress since %s, its limit is %s", s.Loop, s.Since.UTC().Format(time.RFC3339), s.Limit)
}

// Check returns a *StuckError if the loop is stuck, and else nil.
func (l *Loop) Check() error {
	l.mu.Lock()
	beat := l.beat
	l.mu.Unlock()
	if beat.IsZero() || time.Since(beat) <= l.limit {
		return nil
	}
	return &StuckError{Loop: l.name, Since: beat, Limit: l.limit}
}
