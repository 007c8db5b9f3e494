// Package retry paces what is tried again and again, and says so once in a while.
package retry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Backoff makes growing delays with jitter. It is not safe for use by several goroutines.
type Backoff struct {
	// Min is the first delay. Default 100ms.
	Min time.Duration
	// Max is the longest. Default 10s.
	Max time.Duration

	next time.Duration
}

// Next is the delay before the next try: twice the one before, less up to a quarter, so that proxies which lost the
// same control plane do not come back in step.
func (b *Backoff) Next() time.Duration {
	low, high := b.Min, b.Max
	if low <= 0 {
		low = 100 * time.Millisecond
	}
	if high <= 0 {
		high = 10 * time.Second
	}
	b.next = min(max(b.next, low), high)
	delay := b.next
	b.next *= 2
	return delay - rand.N(delay/4+1) //nolint:gosec // it spreads load, it is no secret
}

// Reset starts again with Min, after a success.
func (b *Backoff) Reset() { b.next = 0 }

// Wait returns after d, or with ctx's error when that ends first.
func Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reporter logs failures that repeat: the first, each other text, and the same one once a minute. It is not safe for use
// by several goroutines.
type Reporter struct {
	Logger *slog.Logger

	text string
	next time.Time
	held int
}

const repeatAfter = time.Minute

// Failed logs err with the constant message msg, unless it has done so lately.
func (r *Reporter) Failed(ctx context.Context, level slog.Level, msg string, err error) {
	if text := msg + err.Error(); text != r.text || !time.Now().Before(r.next) {
		//nolint:sloglint // the caller's message is the constant one
		r.Logger.Log(ctx, level, msg, "err", err, "unreported", r.held)
		r.text, r.next, r.held = text, time.Now().Add(repeatAfter), 0
		return
	}
	r.held++
}

// Succeeded makes the next failure the first.
func (r *Reporter) Succeeded() { r.text, r.held = "", 0 }
