package lb

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// period is how often Envoy is checked; firstPeriod is how often until Envoy answers.
const (
	period      = 5 * time.Second
	firstPeriod = 250 * time.Millisecond
)

// change is a change to a listener or cluster that Envoy has received but not applied. If more changes have arrived, it
// is the oldest.
type change struct {
	families []family
	received time.Time // by Envoy's clock, to distinguish changes
	since    time.Time // by this process's monotonic clock
}

// changes tracks what Envoy has not applied. It ignores rejected changes: Envoy keeps its previous configuration, which
// a restart would lose.
type changes struct {
	limit time.Duration

	mu      sync.Mutex
	pending map[string]change
	// answered is when the last check that Envoy answered was sent; zero before the first.
	answered time.Time
	// silent is since when Envoy has not answered, and why is the reason; both are zero while Envoy answers, and before
	// its first response.
	silent time.Time
	why    error
	// applied is when Envoy last had no pending change, by family.
	applied map[family]time.Time
}

// Follow checks Envoy until ctx ends.
func (s *Server) Follow(ctx context.Context, admin Admin) {
	tick := time.NewTicker(firstPeriod)
	defer tick.Stop()
	for first := true; ; {
		s.o.Loop.Begin()
		answered := s.changes.look(ctx, admin)
		s.o.Loop.End()
		if first && answered {
			first = false
			tick.Reset(period)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look checks Envoy once, and reports whether it answered.
func (c *changes) look(ctx context.Context, admin Admin) bool {
	began := time.Now()
	found, err := unapplied(ctx, admin)
	if ctx.Err() != nil {
		return false // the result says nothing about Envoy
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.fail(began, err)
		return false
	}
	c.pending = c.next(found, began)
	c.answered, c.silent, c.why = began, time.Time{}, nil
	for _, f := range families {
		if !slices.ContainsFunc(found, func(r resource) bool { return slices.Contains(r.families, f) }) {
			if c.applied == nil {
				c.applied = map[family]time.Time{}
			}
			c.applied[f] = began
		}
	}
	return true
}

// fail records a check without a response. Envoy has applied nothing since its last response. If this process itself
// was stopped since then, only the time since this check is known. The caller holds mu.
func (c *changes) fail(began time.Time, err error) {
	if c.answered.IsZero() {
		return // Envoy has received nothing yet
	}
	if c.why = err; c.silent.IsZero() {
		c.silent = c.answered
		if earliest := began.Add(-period); earliest.After(c.silent) {
			c.silent = earliest
		}
	}
}

// next returns the pending changes. The caller holds mu.
func (c *changes) next(found []resource, now time.Time) map[string]change {
	pending := make(map[string]change, len(found))
	for _, r := range found {
		before, ok := c.pending[r.name]
		if ok && r.active.Before(before.received) { // the first change is still not applied, even if others followed
			before.families = r.families
			pending[r.name] = before
			continue
		}
		since := now.Add(-max(0, now.Sub(r.warming)))
		if since.Before(c.answered) { // the change is newer than the last check, so Envoy's clock was set
			since = c.answered
		}
		pending[r.name] = change{families: r.families, received: r.warming, since: since}
	}
	return pending
}

// state returns when a family last had no pending change, and an error if a change has been pending for too long.
func (c *changes) state(f family, now time.Time) (applied time.Time, late error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	applied = c.applied[f]
	if !c.silent.IsZero() && now.Sub(c.silent) >= c.limit {
		return applied, fmt.Errorf("envoy has not answered for %s: %w", now.Sub(c.silent).Round(time.Second), c.why)
	}
	oldest, name := now, ""
	for n, p := range c.pending {
		if slices.Contains(p.families, f) && p.since.Before(oldest) {
			oldest, name = p.since, n
		}
	}
	if waits := now.Sub(oldest); waits >= c.limit {
		return applied, fmt.Errorf("envoy has not applied %s, received %s ago", name, waits.Round(time.Second))
	}
	return applied, nil
}
