package run

import (
	"context"
	"time"
)

// Every yields at once, and then every d until ctx ends.
func Every(ctx context.Context, d time.Duration) func(yield func() bool) { return EveryOr(ctx, d, nil) }

// EveryOr is Every that also yields when wake is set.
func EveryOr(ctx context.Context, d time.Duration, wake <-chan struct{}) func(yield func() bool) {
	return func(yield func() bool) {
		ticker := time.NewTicker(d)
		defer ticker.Stop()
		for yield() {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			case <-wake:
			}
		}
	}
}

// Ticks yields after d, and then every d until ctx ends.
func Ticks(ctx context.Context, d time.Duration) func(yield func() bool) {
	return func(yield func() bool) {
		first := true
		for range Every(ctx, d) {
			if !first && !yield() {
				return
			}
			first = false
		}
	}
}
