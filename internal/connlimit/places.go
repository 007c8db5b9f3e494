package connlimit

import (
	"container/heap"
	"container/list"
	"context"
	"math"
	"sync"
	"time"
)

// Options of Places. The zero value has no limits.
type Options struct {
	// Total is the number of places for all sources. Default: no limit.
	Total int
	// Each is the maximum number of places of one source. Default: only Total limits them.
	Each int
	// Patience is how long a connection may be idle while another one waits for a place in Await: four times as long as
	// good peers have recently taken (see Took), but at least Patience and at most MaxPatience. Peers that are slow
	// because all connect at once are not attackers. Defaults 0, and Patience.
	Patience, MaxPatience time.Duration
}

// Places are shared by connections of sources, such as addresses or identities. A place is idle while the server waits
// for the peer, and busy while the peer waits for the server. Its methods may be called concurrently.
type Places[S comparable] struct {
	o Options

	mu      sync.Mutex
	taken   int
	sources map[S]*share[S]
	ranking ranking[S]
	slowest time.Duration // duration of recent good peers, at the time slowAt
	slowAt  time.Time
	waiting *list.List        // *wait[S], the newest first
	oldest  bool              // whether the oldest waiter is next
	last    func(S) time.Time // see ByTurns; nil if turns are unknown
	ripens  *time.Timer
	closed  bool
}

// NewPlaces returns free places.
func NewPlaces[S comparable](o Options) *Places[S] {
	o.MaxPatience = max(o.MaxPatience, o.Patience)
	return &Places[S]{o: o, slowest: o.Patience, slowAt: time.Now(), sources: map[S]*share[S]{}, waiting: list.New()}
}

// ByTurns gives places to the waiting source whose last turn was longest ago, among those with the fewest places. last
// returns the time of that turn. The zero time means unknown: such a source alternately comes before and after all
// known ones. A time in the future puts the source last. last must not call Places. Call ByTurns before Await.
func (p *Places[S]) ByTurns(last func(source S) time.Time) *Places[S] {
	p.last = last
	return p
}

// Place is a taken place. Its methods may be called concurrently, and do nothing once it is lost.
type Place[S comparable] struct {
	owner *Places[S]
	lost  func()

	share   *share[S]     // nil once the place is lost or left
	element *list.Element // in one of the lists of share
	busy    bool
	since   time.Time
	calls   int // see Begin
}

// Take takes a place at once. The place is idle. If no place is free, another connection loses its place: a connection
// of the source with the most places, or of any source if none has more than Total/128. Idle connections lose before
// busy ones, and the longest idle or busy first. lost is called once, from any goroutine, if this connection loses its
// place: it must end the connection, and must not wait.
func (p *Places[S]) Take(source S, lost func()) *Place[S] { return p.take(source, lost, false) }

// TakeBusy is Take for a place that is busy from the start.
func (p *Places[S]) TakeBusy(source S, lost func()) *Place[S] { return p.take(source, lost, true) }

func (p *Places[S]) take(source S, lost func(), busy bool) *Place[S] {
	p.mu.Lock()
	var victims []*Place[S]
	if s := p.sources[source]; s != nil && p.o.Each > 0 && s.taken() >= p.o.Each {
		victims = append(victims, p.remove(s.leastUseful()))
	}
	if p.full() {
		victims = append(victims, p.remove(p.ranking[0].leastUseful()))
	}
	place := p.add(source, lost, busy)
	if p.closed {
		victims = append(victims, p.remove(place))
	}
	p.mu.Unlock()
	end(victims)
	return place
}

// Ripens returns how long to wait before Take, so that the evicted connection has been idle for Options.Patience.
func (p *Places[S]) Ripens() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.full() {
		return 0
	}
	if next := p.ranking[0].leastUseful(); !next.busy {
		return max(0, time.Until(next.since.Add(p.patience())))
	}
	return 0
}

// Await waits for a place and takes it, busy. It gets a free place, or the place of a connection that has been idle for
// too long (see Options.Patience). Sources with the fewest places come first, and among these alternately the newest
// waiter, whose peer still waits in a flood, and the oldest. Await returns false after timeout, if ctx ends, and once
// the places are closed. A source with Options.Each places at once gets the place of its own least useful connection.
func (p *Places[S]) Await(ctx context.Context, timeout time.Duration, source S, lost func()) (*Place[S], bool) {
	if ctx.Err() != nil {
		return nil, false
	}
	p.mu.Lock()
	if s := p.sources[source]; s != nil && p.o.Each > 0 && s.taken() >= p.o.Each && !p.closed {
		victim := p.remove(s.leastUseful())
		place := p.add(source, lost, true)
		p.mu.Unlock()
		victim.lost()
		return place, true
	}
	w := &wait[S]{source: source, lost: lost, granted: make(chan *Place[S], 1)}
	element := p.waiting.PushFront(w)
	victims := p.grant()
	p.mu.Unlock()
	end(victims)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case place := <-w.granted:
		return place, place != nil
	case <-timer.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.waiting.Remove(element)
	p.mu.Unlock()
	select {
	case place := <-w.granted: // granted meanwhile
		if place != nil && ctx.Err() != nil { // the caller no longer needs it
			place.Leave()
			return nil, false
		}
		return place, place != nil
	default:
		return nil, false
	}
}

// Took records how long a good peer took.
func (p *Places[S]) Took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d >= p.recent() {
		p.slowest, p.slowAt = d, time.Now()
	}
}

const (
	// patienceFactor is how many times longer than recent good peers other peers may take.
	patienceFactor = 4
	// halfLife is the time after which half of the slowness of past peers is forgotten.
	halfLife = 2 * time.Second
)

// recent returns how long good peers have recently taken. The caller holds mu.
func (p *Places[S]) recent() time.Duration {
	return time.Duration(float64(p.slowest) * math.Exp2(-float64(time.Since(p.slowAt))/float64(halfLife)))
}

// patience returns the current patience. The caller holds mu.
func (p *Places[S]) patience() time.Duration {
	return min(max(patienceFactor*p.recent(), p.o.Patience), p.o.MaxPatience)
}

// Close takes away all places, including those taken later, and ends each Await.
func (p *Places[S]) Close() {
	p.mu.Lock()
	p.closed = true
	var victims []*Place[S]
	for p.taken > 0 {
		victims = append(victims, p.remove(p.ranking[0].leastUseful()))
	}
	p.grant()
	p.mu.Unlock()
	end(victims)
}

// Busy marks the place busy: the peer waits for the server.
func (p *Place[S]) Busy() { p.change(0, func() bool { return true }) }

// Idle marks the place idle: the server waits for the peer from now on.
func (p *Place[S]) Idle() { p.IdleFor(0) }

// IdleFor is Idle for a peer for which the server has already waited this long: a peer that pauses again and again is
// as slow as a peer that pauses once.
func (p *Place[S]) IdleFor(d time.Duration) { p.change(d, func() bool { return false }) }

// Begin begins a call. The place is busy until end is called, and idle when no call is in progress. The caller must
// call end once.
func (p *Place[S]) Begin() (end func()) {
	count := func(n int) func() bool {
		return func() bool {
			p.calls += n
			return p.calls > 0
		}
	}
	p.change(0, count(1))
	return func() { p.change(0, count(-1)) }
}

// change marks the place busy, or idle since already, as next returns. It calls next with the owner's mu held.
func (p *Place[S]) change(already time.Duration, next func() (busy bool)) {
	o := p.owner
	o.mu.Lock()
	busy, s := next(), p.share
	if s == nil {
		o.mu.Unlock()
		return
	}
	s.list(p.busy).Remove(p.element)
	s.push(p, busy, time.Now().Add(-already))
	heap.Fix(&o.ranking, s.at)
	var victims []*Place[S]
	if !busy {
		victims = o.grant() // so that waiters wake when this place is ripe
	}
	o.mu.Unlock()
	end(victims)
}

// Leave frees the place. It may be called more than once.
func (p *Place[S]) Leave() {
	o := p.owner
	o.mu.Lock()
	if p.share != nil {
		o.remove(p)
	}
	victims := o.grant()
	o.mu.Unlock()
	end(victims)
}

// wait is a connection that waits for a place.
type wait[S comparable] struct {
	source  S
	lost    func()
	granted chan *Place[S]
}

func (p *Places[S]) full() bool { return p.o.Total > 0 && p.taken >= p.o.Total }

// grant gives places to waiting connections, and returns the places taken away for them. The caller holds mu.
func (p *Places[S]) grant() (victims []*Place[S]) {
	for p.waiting.Len() > 0 {
		if p.closed {
			p.waiting.Remove(p.waiting.Front()).(*wait[S]).granted <- nil
			continue
		}
		if p.full() {
			victim, ripe := p.ripest()
			if !ripe {
				p.wakeFor(victim)
				return victims
			}
			victims = append(victims, p.remove(victim))
		}
		next := p.nextWaiting()
		w := p.waiting.Remove(next).(*wait[S])
		w.granted <- p.add(w.source, w.lost, true)
	}
	return victims
}

// ripest returns the place to take away for a waiting connection: among places idle for longer than patience, the
// longest idle of the source with the most places. If no place is ripe, it returns the next to become ripe, or nil if
// all are busy. The caller holds mu.
func (p *Places[S]) ripest() (victim *Place[S], ripe bool) {
	limit := time.Now().Add(-p.patience())
	for _, s := range p.ranking {
		front := s.idle.Front()
		if front == nil {
			continue
		}
		candidate := front.Value.(*Place[S])
		isRipe := !candidate.since.After(limit)
		switch {
		case victim == nil, isRipe && !ripe:
		case isRipe != ripe:
			continue
		case ripe && s.counts() != victim.share.counts():
			if s.counts() < victim.share.counts() {
				continue
			}
		case !candidate.since.Before(victim.since):
			continue
		}
		victim, ripe = candidate, isRipe
	}
	return victim, ripe
}

// wakeFor calls grant when next is ripe. The caller holds mu.
func (p *Places[S]) wakeFor(next *Place[S]) {
	if next == nil {
		return // grant is called when a place becomes idle or is left
	}
	d := max(time.Until(next.since.Add(p.patience())), time.Millisecond)
	if p.ripens != nil {
		p.ripens.Reset(d)
		return
	}
	p.ripens = time.AfterFunc(d, func() {
		p.mu.Lock()
		victims := p.grant()
		p.mu.Unlock()
		end(victims)
	})
}

// nextWaiting returns the waiting connection to serve next. The caller holds mu.
func (p *Places[S]) nextWaiting() *list.Element {
	best, next := p.waiting.Front(), (*list.Element).Next
	if p.oldest {
		best, next = p.waiting.Back(), (*list.Element).Prev
	}
	first := p.claimOf(best)
	for e := next(best); e != nil && (first.taken > 0 || p.last != nil); e = next(e) {
		if c := p.claimOf(e); c.before(first) {
			best, first = e, c
		}
	}
	p.oldest = !p.oldest
	return best
}

// claim orders waiting connections.
type claim struct {
	taken int
	last  time.Time
}

func (c claim) before(o claim) bool {
	return c.taken < o.taken || c.taken == o.taken && c.last.Before(o.last)
}

// claimOf returns the claim of a waiting connection. The caller holds mu.
func (p *Places[S]) claimOf(waiting *list.Element) (c claim) {
	source := waiting.Value.(*wait[S]).source
	if s := p.sources[source]; s != nil {
		c.taken = s.taken()
	}
	if p.last == nil {
		return c
	}
	if c.last = p.last(source); c.last.IsZero() && p.oldest {
		c.last = time.Now() // later than all past turns
	}
	return c
}

// add adds a place. The caller holds mu.
func (p *Places[S]) add(source S, lost func(), busy bool) *Place[S] {
	s := p.sources[source]
	if s == nil {
		s = &share[S]{source: source, few: fewOf(p.o.Total)}
		p.sources[source] = s
		heap.Push(&p.ranking, s)
	}
	place := &Place[S]{owner: p, lost: lost, share: s}
	s.push(place, busy, time.Now())
	heap.Fix(&p.ranking, s.at)
	p.taken++
	return place
}

// remove frees a place, and returns it. The caller holds mu.
func (p *Places[S]) remove(place *Place[S]) *Place[S] {
	s := place.share
	s.list(place.busy).Remove(place.element)
	place.share = nil
	p.taken--
	if s.taken() == 0 {
		heap.Remove(&p.ranking, s.at)
		delete(p.sources, s.source)
	} else {
		heap.Fix(&p.ranking, s.at)
	}
	return place
}

// end ends connections that have lost their places. The caller must not hold mu, which they take.
func end[S comparable](victims []*Place[S]) {
	for _, v := range victims {
		v.lost()
	}
}
