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
	// pause is the minimum time between the starts of two scrapes. For 1,000 services Envoy takes 14 ms of it.
	pause = 250 * time.Millisecond
	// readPatience bounds how long a client may leave data unread while another client waits, and totalPatience bounds the
	// sum. Otherwise a client that reads a little now and then would keep its place. Together with pause they are less
	// than waitTimeout.
	readPatience  = 500 * time.Millisecond
	totalPatience = 2 * time.Second
	// waitTimeout bounds the wait of a scrape. Together with answerTimeout it is less than the 10 seconds of Prometheus.
	waitTimeout = 3500 * time.Millisecond
	// retryAfter is when a rejected client may retry.
	retryAfter = 5 * time.Second
)

// turns lets many clients scrape in turn, by source: at most maxScrapes at once, and one start per pause.
type turns struct {
	places *connlimit.Places[netip.Prefix]
	record record
	begin  chan struct{} // held by the scrape that starts next
	next   time.Time     // when it may start; for the holder of begin
}

func newTurns() *turns {
	t := &turns{begin: make(chan struct{}, 1), record: record{last: map[netip.Prefix]time.Time{}}}
	t.places = connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxScrapes,
		Patience: readPatience}).ByTurns(t.record.lastTurn)
	return t
}

// record has the time of the last turn of each source.
type record struct {
	mu   sync.Mutex
	last map[netip.Prefix]time.Time // in the future for sources that did not read
}

const (
	// maxRecords limits the remembered sources. Above the limit, the source with the oldest turn is dropped.
	maxRecords = 256
	// slowTime is how long a source that lost its turn because it did not read comes after all others.
	slowTime = time.Minute
)

func (r *record) lastTurn(source netip.Prefix) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last[source]
}

// add records a turn; slow means that the source did not read.
func (r *record) add(source netip.Prefix, slow bool) {
	at := time.Now()
	if slow {
		at = at.Add(slowTime)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.last[source]; !ok && len(r.last) >= maxRecords {
		delete(r.last, slices.MinFunc(slices.Collect(maps.Keys(r.last)),
			func(a, b netip.Prefix) int { return r.last[a].Compare(r.last[b]) }))
	}
	r.last[source] = at
}

// await waits for a turn. It returns false on a timeout, or if ctx ends. lost is called if another source takes over
// the place before the scrape has ended.
func (t *turns) await(
	ctx context.Context, source netip.Prefix, paced bool, lost func(),
) (*connlimit.Place[netip.Prefix], bool) {
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

// pause waits until the next scrape may start. It returns false if ctx ends first: a scrape that never starts delays no
// other.
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
