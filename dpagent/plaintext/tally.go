package plaintext

import (
	"net/netip"
	"slices"
	"time"
)

// tally is how much has come, and when.
type tally struct {
	count       uint64
	first, last time.Time
	// open is on how many connections something goes on, see open.
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

// take adds what other has.
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

// inbound is what has come to one port, for one reason to refuse it.
type inbound struct {
	sources map[netip.Addr]*tally
	// others are sources beyond maxTracked, and what the access log has lost.
	others tally
	// probes are requests with the user agent of a kubelet.
	probes tally
}

// source returns the tally of a source. Once there are maxTracked, those that were seen once, longest ago, make room, and count among the others;
// without any the new one does. So those that call often stay, however many others there are.
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

// evict drops half of the sources that were seen once.
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
