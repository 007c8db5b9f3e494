package lb

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// period is how often Envoy is looked at, and firstPeriod how often until it answers.
const (
	period      = 5 * time.Second
	firstPeriod = 250 * time.Millisecond
)

// change is what Envoy has received for a listener or a cluster, and not applied. If more came for it meanwhile, it is the oldest.
type change struct {
	families []family
	received time.Time // by Envoy's clock, which tells changes apart
	since    time.Time // the same by the clock of this process, which is never set
}

// changes follows what Envoy has not applied. A refused change does not count: Envoy goes on with what it has, which a restart would lose.
type changes struct {
	limit time.Duration

	mu      sync.Mutex
	pending map[string]change
	// answered is when the last look began that Envoy has answered; zero before the first.
	answered time.Time
	// silent is since when Envoy does not answer, and why; zero while it does, and before the first answer.
	silent time.Time
	why    error
	// applied is when nothing was pending, by family.
	applied map[family]time.Time
}

// Follow looks at Envoy until ctx ends.
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

// look asks Envoy once, and reports whether it has answered.
func (c *changes) look(ctx context.Context, admin Admin) bool {
	began := time.Now()
	found, err := unapplied(ctx, admin)
	if ctx.Err() != nil {
		return false // it says nothing of Envoy
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

// fail records a look without an answer. Envoy applies nothing since its last answer; but a process that has itself stood still since then
// knows no more than that Envoy does not answer now. It needs mu.
func (c *changes) fail(began time.Time, err error) {
	if c.answered.IsZero() {
		return // it has received nothing
	}
	if c.why = err; c.silent.IsZero() {
		c.silent = c.answered
		if earliest := began.Add(-period); earliest.After(c.silent) {
			c.silent = earliest
		}
	}
}

// next returns what is pending now. It needs mu.
func (c *changes) next(found []resource, now time.Time) map[string]change {
	pending := make(map[string]change, len(found))
	for _, r := range found {
		before, known := c.pending[r.name]
		if known && r.active.Before(before.received) { // what came first is still not applied, whatever came since
			before.families = r.families
			pending[r.name] = before
			continue
		}
		since := now.Add(-max(0, now.Sub(r.warming)))
		if since.Before(c.answered) { // it was not there at the last look: Envoy's clock was set
			since = c.answered
		}
		pending[r.name] = change{families: r.families, received: r.warming, since: since}
	}
	return pending
}

// state returns when a family was last seen to have nothing pending, and an error if what is pending has been so for too long.
func (c *changes) state(f family, now time.Time) (applied time.Time, late error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	applied = c.applied[f]
	if !c.silent.IsZero() && now.Sub(c.silent) >= c.limit {
		return applied, fmt.Errorf("envoy does not answer for %s: %w", now.Sub(c.silent).Round(time.Second), c.why)
	}
	oldest, name := now, ""
	for n, p := range c.pending {
		if slices.Contains(p.families, f) && p.since.Before(oldest) {
			oldest, name = p.since, n
		}
	}
	if waits := now.Sub(oldest); waits >= c.limit {
		return applied, fmt.Errorf("envoy has not applied %s, which it received %s ago", name, waits.Round(time.Second))
	}
	return applied, nil
}
