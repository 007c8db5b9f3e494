package scrape

import (
	"context"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/internal/connlimit"
)

const (
	// pause is the least time between the begins of two scrapes. Envoy takes 14 ms of it for 1,000 services.
	pause = 250 * time.Millisecond
	// readPatience is how long a client may leave what it is sent unread while another one waits.
	readPatience = 500 * time.Millisecond
	// waitTimeout is how long a scrape may wait. With answerTimeout it is less than the 10 seconds of Prometheus.
	waitTimeout = 3500 * time.Millisecond
	// retryAfter is when a client may try again that was told that there are too many.
	retryAfter = 5 * time.Second
)

// turns has scrapes of many clients take turns, by source, so that Envoy is asked maxScrapes times at once, and once a pause.
type turns struct {
	places *connlimit.Places[netip.Prefix]
	begin  chan struct{} // holds the one that begins next
	next   time.Time     // when it may; for who holds begin
}

func newTurns() *turns {
	return &turns{
		places: connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: maxScrapes, Patience: readPatience}),
		begin:  make(chan struct{}, 1),
	}
}

// await waits for a turn. It returns false if there is none in time, or if ctx ends. lost is called if another one gets the place before it is left.
func (t *turns) await(ctx context.Context, source netip.Prefix, lost func()) (*connlimit.Place[netip.Prefix], bool) {
	place, ok := t.places.Await(ctx, waitTimeout, source, lost)
	if !ok {
		return nil, false
	}
	if !t.pause(ctx) {
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
	if ctx.Err() != nil || retry.Wait(ctx, time.Until(t.next)) != nil {
		return false
	}
	t.next = time.Now().Add(pause)
	return true
}
