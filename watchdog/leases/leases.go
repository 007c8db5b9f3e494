// Package leases finds out when nodes were heard last, on the watchdog's clock, from the renewTime of their leases, which is on the clocks of the nodes.
package leases

import "time"

// Lease of a node.
type Lease struct {
	Node    string
	Renewed time.Time // by the node's clock
}

// Tracker remembers leases. The zero value is usable. It is not safe for concurrent use.
type Tracker struct {
	at     time.Time // of the last reading
	missed bool      // there were readings since that have failed
	nodes  map[string]*record
}

// record of a node.
type record struct {
	renewed time.Time
	// heard is zero until the lease was seen to be renewed: how old it was at first is not known.
	heard time.Time
	// least is the least that a reading was later than the renewTime that it had, both clocks as they are: how far the node's clock is behind, and the
	// least time that a renewal takes to be read.
	least time.Duration
}

// Missed says that a reading has failed. The time until the next one that does not is no silence of the nodes: they may not have reached the API
// server either.
func (t *Tracker) Missed() { t.missed = true }

// Read takes the leases of a reading, which began at a time. It forgets nodes that have none any more.
func (t *Tracker) Read(at time.Time, leases []Lease) {
	blind := time.Duration(0)
	if t.missed && !t.at.IsZero() {
		blind = max(0, at.Sub(t.at))
	}
	now := make(map[string]*record, len(leases))
	for _, l := range leases {
		r := t.nodes[l.Node]
		if r == nil {
			now[l.Node] = &record{renewed: l.Renewed}
			continue
		}
		now[l.Node] = r
		switch {
		case !r.renewed.Equal(l.Renewed):
			r.renew(l.Renewed, at, t.at)
			r.heard = minTime(at, r.heard.Add(blind))
		case !r.heard.IsZero():
			r.heard = r.heard.Add(blind)
		}
	}
	t.nodes, t.at, t.missed = now, at, false
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// renew notes a renewal between two readings. One that seems to be older than the first of them is by a clock that was set back, or has taken
// long: it was heard in any case.
func (r *record) renew(renewed, at, before time.Time) {
	lag := at.Sub(renewed)
	first := r.heard.IsZero()
	r.renewed = renewed
	if first || lag < r.least {
		r.least = lag
	}
	r.heard = at.Add(r.least - lag)
	if r.heard.Before(before) {
		r.least, r.heard = lag, at
	}
}

// Heard returns when a node was heard last, on the clock of Read; zero if it was not heard since the Tracker began.
func (t *Tracker) Heard(node string) time.Time {
	if r := t.nodes[node]; r != nil {
		return r.heard
	}
	return time.Time{}
}
