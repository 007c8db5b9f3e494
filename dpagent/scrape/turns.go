package scrape

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// pause is the least time between the begins of two scrapes. Envoy takes 14 ms of it for 1,000 services.
	pause = 250 * time.Millisecond
	// readPatience is how long a client may leave what it is sent unread while another one waits, and totalPatience for how long all in all: one that reads a
	// little now and then would else keep its place. Together with pause it is less than waitTimeout.
	readPatience  = 500 * time.Millisecond
	totalPatience = 2 * time.Second
	// waitTimeout is how long a scrape may wait. With answerTimeout it is less than the 10 seconds of Prometheus.
	waitTimeout = 3500 * time.Millisecond
	// retryAfter is when a client may try again that was told that there are too many.
	retryAfter = 5 * time.Second
)

// turns has scrapes of many clients take turns, by source, so that Envoy is asked maxScrapes times at once, and once a pause.
type turns struct {
	places *connlimit.Places[netip.Prefix]
	record record
	begin  chan struct{} // holds the one that begins next
	next   time.Time     // when it may; for who holds begin
}

func newTurns() *turns {
	t := &turns{begin: make(chan struct{}, 1), record: record{last: map[netip.Prefix]time.Time{}}}
	t.places = connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxScrapes, Patience: readPatience}).ByTurns(t.record.lastTurn)
	return t
}

// record has the last turns of sources.
type record struct {
	mu   sync.Mutex
	last map[netip.Prefix]time.Time // in the future for those that did not read
}

const (
	// maxRecords is how many sources are known: of more, those whose turn was longest ago are forgotten.
	maxRecords = 256
	// slowTime is how long a source comes after all others that has lost a turn since it did not read.
	slowTime = time.Minute
)

func (r *record) lastTurn(source netip.Prefix) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[source]
}

// add adds a turn, in which the source has not read if it is slow.
func (r *record) add(source netip.Prefix, slow bool) {
	at := time.Now()
	if slow {
		at = at.Add(slowTime)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.last[source]; !known && len(r.last) >= maxRecords {
		delete(r.last, slices.MinFunc(slices.Collect(maps.Keys(r.last)), func(a, b netip.Prefix) int { return r.last[a].Compare(r.last[b]) }))
	}
	r.last[source] = at
}

// await waits for a turn. It returns false if there is none in time, or if ctx ends. lost is called if another one gets the place before it is left.
func (t *turns) await(ctx context.Context, source netip.Prefix, paced bool, lost func()) (*connlimit.Place[netip.Prefix], bool) {
	place, ok := t.places.Await(ctx, waitTimeout, source, lost)
	if !ok {
		return nil, false
	}
	if paced && !t.pause(ctx) {
		place.Leave()
		return nil, false
	}
	return place, true
}

// pause waits until the next scrape may begin. It returns false if ctx ends before: a scrape that never begins takes nobody's time.
func (t *turns) pause(ctx context.Context) bool {
	select {
	case t.begin <- struct{}{}:
		defer func() { <-t.begin }()
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil || run.Sleep(ctx, time.Until(t.next)) != nil {
		return false
	}
	t.next = time.Now().Add(pause)
	return true
}
