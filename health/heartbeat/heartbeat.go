// Package heartbeat is a watchdog for loops. A loop marks when it begins to work and when it waits again. A waiting
// loop is fine; a loop that works on one turn for longer than its limit is stuck.
package heartbeat

import (
	"fmt"
	"sync"
	"time"
)

// Loop is a goroutine that works in turns. Its methods do nothing on a nil Loop, which is not monitored.
type Loop struct {
	name  string
	limit time.Duration

	mu   sync.Mutex
	beat time.Time // last beat of the current turn; zero while the loop waits
}

// New returns a waiting loop. A turn may take up to the limit from its beginning, or between two beats.
func New(name string, limit time.Duration) *Loop { return &Loop{name: name, limit: limit} }

// Begin begins a turn, and ends the previous one.
func (l *Loop) Begin() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat = time.Now()
}

// Beat marks progress, so that a long turn does not count as stuck.
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

// End ends the turn: the loop waits for the next turn.
func (l *Loop) End() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat = time.Time{}
}

// StuckError means that a loop has not beaten for longer than its limit.
type StuckError struct {
	Loop  string
	Since time.Time // its last beat
	Limit time.Duration
}

// Error implements error.
func (s *StuckError) Error() string {
	return fmt.Sprintf("loop %q has made no progress since %s, limit %s",
		s.Loop, s.Since.UTC().Format(time.RFC3339), s.Limit)
}

// Check returns a *StuckError if the loop is stuck, otherwise nil.
func (l *Loop) Check() error {
	l.mu.Lock()
	beat := l.beat
	l.mu.Unlock()
	if beat.IsZero() || time.Since(beat) <= l.limit {
		return nil
	}
	return &StuckError{Loop: l.name, Since: beat, Limit: l.limit}
}
