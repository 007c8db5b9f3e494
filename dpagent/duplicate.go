package dpagent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// duplicateFor is how long another agent of this proxy is remembered after its last call: it tries again within 10 s, and a try takes up to 13 s.
const duplicateFor = 25 * time.Second

// duplicates are other agents with this one's name: two of them would take the session from each other, and the endpoint of one gets the traffic of both.
type duplicates struct {
	log *slog.Logger

	mu      sync.Mutex
	refused error // why this agent was refused for another one, nil if it was not
	address string
	seen    time.Time // when the control plane has last refused another one for this
}

// add records that the control plane has refused another agent, which has called from that address.
func (d *duplicates) add(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.seen) > duplicateFor || address != d.address {
		d.log.Warn("another agent with this name asks for its place, and is refused", "address", address)
	}
	d.address, d.seen = address, time.Now()
}

// setRefused records why the control plane has refused this agent, nil once it has not.
func (d *duplicates) setRefused(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = err
}

// refusal returns why the control plane has refused this agent for another one.
func (d *duplicates) refusal(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

// recent returns an error if another agent was refused a moment ago.
func (d *duplicates) recent(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.seen.IsZero() || time.Since(d.seen) > duplicateFor {
		return nil
	}
	return fmt.Errorf("duplicate: another agent with this name has called from %s, last at %s, and was refused: end it, or give it another name",
		d.address, d.seen.UTC().Format(time.RFC3339))
}
