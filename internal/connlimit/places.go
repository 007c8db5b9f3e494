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
	// Total is how many places there are for all sources. Default: no limit.
	Total int
	// Each is how many places one source may have. Default: no limit but Total.
	Each int
	// Patience is how long the peer of a connection is waited for while another connection waits for a place in Await: four times as long
	// as good peers have taken lately, see Took, but at least Patience and at most MaxPatience. Peers that are slow since all
	// come at once are no attackers. Defaults 0, and Patience.
	Patience, MaxPatience time.Duration
}

// Places are shared by connections of sources, such as addresses or identities. A place is idle while the server waits for the peer,
// and busy while the peer waits for the server. Its methods may be called concurrently.
type Places[S comparable] struct {
	o Options

	mu      sync.Mutex
	taken   int
	sources map[S]*share[S]
	ranking ranking[S]
	slowest time.Duration // of the good peers lately, at the time slowAt
	slowAt  time.Time
	waiting *list.List        // of *wait[S], the newest first
	oldest  bool              // whether the oldest comes next
	last    func(S) time.Time // see ByTurns; nil if no turn is known
	ripens  *time.Timer
	closed  bool
}

// NewPlaces returns places that are all free.
func NewPlaces[S comparable](o Options) *Places[S] {
	o.MaxPatience = max(o.MaxPatience, o.Patience)
	return &Places[S]{o: o, slowest: o.Patience, slowAt: time.Now(), sources: map[S]*share[S]{}, waiting: list.New()}
}

// ByTurns has places go to the source that waits in Await whose last turn was longest ago, among those with the fewest places. last returns when that was: the zero
// time if it is not known, which in turn comes before and after all that are known, and one in the future if the source is to come last. It must not call Places.
// ByTurns must be called before Await.
func (p *Places[S]) ByTurns(last func(source S) time.Time) *Places[S] {
	p.last = last
	return p
}

// Place is one place that is taken. Its methods may be called concurrently, and do nothing once it is lost.
type Place[S comparable] struct {
	owner *Places[S]
	lost  func()

	share   *share[S]     // nil once it is lost or left
	element *list.Element // in one of the lists of share
	busy    bool
	since   time.Time
	calls   int // see Begin
}

// Take takes a place at once, which is idle. Where none is free, another connection loses its place: of the source with the most places, or of all
// sources where none has more than Total/128, an idle one, else a busy one; of these the one that is so for longest. lost is called if that happens
// to this one, once and from any goroutine: it has to end the connection, and must not wait.
func (p *Places[S]) Take(source S, lost func()) *Place[S] { return p.take(source, lost, false) }

// TakeBusy is Take of a place that is busy from the first moment on.
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

// Ripens returns how long to wait before Take, so that the one that makes room has been idle for Options.Patience.
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

// Await takes a place, which is busy, as soon as one is free, or another connection has been idle for too long, see Options.Patience, and loses its own. Of
// those that wait, those of the source with the fewest places come first, and of these in turn the newest, whose peer is still there in a
// flood, and the oldest. It returns false after timeout, if ctx ends, and once the places are closed. A source that has Options.Each gets the place of its own
// least useful connection at once.
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
	case place := <-w.granted: // meanwhile
		if place != nil && ctx.Err() != nil { // nobody is there to use it
			place.Leave()
			return nil, false
		}
		return place, place != nil
	default:
		return nil, false
	}
}

// Took says how long a peer was waited for that has turned out to be good.
func (p *Places[S]) Took(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d >= p.recent() {
		p.slowest, p.slowAt = d, time.Now()
	}
}

const (
	// patienceFactor is how many times as long as good peers have taken others may take.
	patienceFactor = 4
	// halfLife is how soon half of what slow peers have taken is forgotten.
	halfLife = 2 * time.Second
)

// recent returns how slow good peers have been lately. It needs mu.
func (p *Places[S]) recent() time.Duration {
	return time.Duration(float64(p.slowest) * math.Exp2(-float64(time.Since(p.slowAt))/float64(halfLife)))
}

// patience needs mu.
func (p *Places[S]) patience() time.Duration {
	return min(max(patienceFactor*p.recent(), p.o.Patience), p.o.MaxPatience)
}

// Close has all places lost, also those that are taken from now on, and ends each Await.
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

// Busy says that the peer waits for the server.
func (p *Place[S]) Busy() { p.change(0, func() bool { return true }) }

// Idle says that the server waits for the peer, from now on.
func (p *Place[S]) Idle() { p.IdleFor(0) }

// IdleFor is Idle for a peer that was waited for that long before: one that lets itself be waited for again and again is as slow as one that does at once.
func (p *Place[S]) IdleFor(d time.Duration) { p.change(d, func() bool { return false }) }

// Begin begins a call. The place is busy until end is called, and idle again once no call goes on. end must be called once.
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

// change makes the place busy or idle for some time already, as next says, which is called with the owner's mu.
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
		victims = o.grant() // waiters have to be woken when this one is ripe
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

// grant gives places to those that wait, and returns those that lose theirs for it. It needs mu.
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

// ripest returns who loses its place to one that waits: of those that have been idle for longer than patience one of the source with the
// most, the longest. If there is none, it returns the one that will be so first, nil if all are busy. It needs mu.
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

// wakeFor calls grant once a place is ripe. It needs mu.
func (p *Places[S]) wakeFor(next *Place[S]) {
	if next == nil {
		return // one that becomes idle or leaves calls grant
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

// nextWaiting returns the one that comes next. It needs mu.
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

// claim is what decides whose turn is next.
type claim struct {
	taken int
	last  time.Time
}

func (c claim) before(o claim) bool {
	return c.taken < o.taken || c.taken == o.taken && c.last.Before(o.last)
}

// claimOf needs mu.
func (p *Places[S]) claimOf(waiting *list.Element) (c claim) {
	source := waiting.Value.(*wait[S]).source
	if s := p.sources[source]; s != nil {
		c.taken = s.taken()
	}
	if p.last == nil {
		return c
	}
	if c.last = p.last(source); c.last.IsZero() && p.oldest {
		c.last = time.Now() // after all turns that have been
	}
	return c
}

// add adds a place. It needs mu.
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

// remove frees a place, and returns it. It needs mu.
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

// end ends connections that have lost their places. It needs no mu, which they take.
func end[S comparable](victims []*Place[S]) {
	for _, v := range victims {
		v.lost()
	}
}
