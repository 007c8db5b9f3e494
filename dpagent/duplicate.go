package dpagent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// duplicateFor is how long this agent remembers a duplicate after its last call: a duplicate retries within 10 s, and
// an attempt takes up to 13 s.
const duplicateFor = 25 * time.Second

// duplicates records other agents with this agent's name. Two such agents would take the session from each other, and
// the endpoint of one would get the traffic of both.
type duplicates struct {
	log *slog.Logger

	mu      sync.Mutex
	refused error // why the control plane rejected this agent as a duplicate; nil if not rejected
	address string
	seen    time.Time // when the control plane last rejected another agent
}

// add records that the control plane has rejected another agent, which called from this address.
func (d *duplicates) add(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.seen) > duplicateFor || address != d.address {
		d.log.Warn("rejected a second agent with this proxy's name", "address", address)
	}
	d.address, d.seen = address, time.Now()
}

// setRefused records why the control plane rejects this agent as a duplicate; nil means that it no longer does.
func (d *duplicates) setRefused(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = err
}

// refusal returns why the control plane rejects this agent as a duplicate, or nil.
func (d *duplicates) refusal(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// recent returns an error if another agent was rejected recently.
func (d *duplicates) recent(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen.IsZero() || time.Since(d.seen) > duplicateFor {
		return nil
	}
	return fmt.Errorf("duplicate: another agent with this name called from %s, last at %s, and was rejected: stop it, or give it another name",
		d.address, d.seen.UTC().Format(time.RFC3339))
}
