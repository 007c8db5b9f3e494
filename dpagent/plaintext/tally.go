package plaintext

import (
	"net/netip"
	"slices"
	"time"
)

// tally is an amount of traffic, and its time.
type tally struct {
	count       uint64
	first, last time.Time
	// open is the number of ongoing connections, see open.
	open uint32
}

// add counts n more.
func (t *tally) add(n uint64, at time.Time) {
	t.count += n
	t.seen(at)
}

func (t *tally) seen(at time.Time) {
	if t.first.IsZero() {
		t.first = at
	}
	t.last = at
}

// take adds another tally to t.
func (t *tally) take(other *tally) {
	t.count += other.count
	t.open += other.open
	if t.first.IsZero() || other.first.Before(t.first) {
		t.first = other.first
	}
	if other.last.After(t.last) {
		t.last = other.last
	}
}

// inbound is the traffic to one port that STRICT would reject for one reason.
type inbound struct {
	sources map[netip.Addr]*tally
	// others counts sources beyond maxTracked, and lost records.
	others tally
	// probes counts requests with a kubelet's user agent.
	probes tally
}

// source returns the tally of a source. At maxTracked, sources that were seen only once are moved to in.others, the
// oldest first; without such sources, the new one counts in in.others. So frequent callers keep their tallies, however
// many rare ones there are.
func (in *inbound) source(from netip.Addr) *tally {
	if t := in.sources[from]; t != nil {
		return t
	}
	if len(in.sources) >= maxTracked {
		in.evict()
	}
	if len(in.sources) >= maxTracked {
		return &in.others
	}
	t := &tally{}
	in.sources[from] = t
	return t
}

// evict moves half of the sources that were seen only once to in.others.
func (in *inbound) evict() {
	var once []netip.Addr
	for from, t := range in.sources {
		if t.count <= 1 && t.open == 0 {
			once = append(once, from)
		}
	}
	slices.SortFunc(once, func(a, b netip.Addr) int { return in.sources[a].last.Compare(in.sources[b].last) })
	for _, from := range once[:(len(once)+1)/2] {
		in.others.take(in.sources[from])
		delete(in.sources, from)
	}
}
