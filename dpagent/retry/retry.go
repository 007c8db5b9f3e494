// Package retry computes delays between failed attempts, and limits their logging.
package retry

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

// Backoff computes growing delays with jitter. It is not safe for concurrent use.
type Backoff struct {
	// Min is the first delay. Default 100ms.
	Min time.Duration
	// Max is the longest delay. Default 10s.
	Max time.Duration

	next time.Duration
}

// Next returns the delay before the next attempt: twice the last one, minus up to a quarter, so that proxies that lost
// the control plane together do not all reconnect at once.
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
	return delay - rand.N(delay/4+1) //nolint:gosec // jitter, not a secret
}

// Reset makes the next delay Min.
func (b *Backoff) Reset() { b.next = 0 }

// Reporter logs repeated failures: each new text, and the same text once a minute. It is not safe for concurrent use.
type Reporter struct {
	Logger *slog.Logger

	text       string
	next       time.Time
	suppressed int
}

const repeatAfter = time.Minute

// Failed logs err with the constant message msg, unless it has logged the same within the last minute.
func (r *Reporter) Failed(ctx context.Context, level slog.Level, msg string, err error) {
	if text := msg + err.Error(); text != r.text || !time.Now().Before(r.next) {
		//nolint:sloglint // the caller passes a constant message
		r.Logger.Log(ctx, level, msg, "err", err, "unreported", r.suppressed)
		r.text, r.next, r.suppressed = text, time.Now().Add(repeatAfter), 0
		return
	}
	r.suppressed++
}

// Succeeded makes Failed log the next failure.
func (r *Reporter) Succeeded() { r.text, r.suppressed = "", 0 }
