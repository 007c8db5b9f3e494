// Package run provides loops, and signals and times that they wait for.
package run

// Signal wakes a loop. Signals set before the loop receives are merged.
type Signal chan struct{}

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return make(Signal, 1) }

// Set wakes the loop, now or when it receives next. It does not block.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // already set
	}
}
