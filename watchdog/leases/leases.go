// Package leases computes, on the watchdog's clock, when each node last renewed its lease. The renewTime of a lease is
// on the node's clock.
package leases

import "time"

// Lease of a node.
type Lease struct {
	Node    string
	Renewed time.Time // on the node's clock
}

// Tracker tracks leases. The zero value is usable. It is not safe for concurrent use.
type Tracker struct {
	at     time.Time // time of the last reading
	missed bool      // readings have failed since then
	nodes  map[string]*record
}

// record of a node.
type record struct {
	renewed time.Time
	// heard is zero until the first observed renewal, since the lease's initial age is unknown.
	heard time.Time
	// least is the smallest observed difference between the time of a reading and the renewTime in it, each on its own
	// clock: the node's clock skew plus the shortest time from renewal to reading.
	least time.Duration
}

// Missed records a failed reading. The time until the next successful reading does not count as silence of the nodes,
// since they may also have been disconnected from the API server.
func (t *Tracker) Missed() { t.missed = true }

// Read records the leases of a reading that began at a time. It drops nodes without a lease.
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

// renew records a renewal between two readings. It is recorded even if its renewTime seems to be before the first
// reading: then the node's clock was set back, or the renewal was delayed.
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

// Heard returns the last renewal of a node on the clock of Read, zero before its first observed renewal.
func (t *Tracker) Heard(node string) time.Time {
	if r := t.nodes[node]; r != nil {
		return r.heard
	}
	return time.Time{}
}
