package connlimit

import (
	"container/list"
	"time"
)

// share is one source's share of the places.
type share[S comparable] struct {
	source        S
	few           int       // see fewOf
	idle, working list.List // of *Place, longest first
	at            int       // index in the ranking
}

func (s *share[S]) taken() int { return s.idle.Len() + s.working.Len() }

// fewOf returns up to how many places of a source count as one. If a source with two places lost one before many
// sources with one each, a flood from many addresses would interrupt a response to a host that makes two requests at
// once.
func fewOf(total int) int { return max(1, total/128) }

// counts returns how many places of the source count: up to few count as one. The source with most loses a place first.
func (s *share[S]) counts() int {
	if n := s.taken(); n == 0 || n > s.few {
		return n
	}
	return 1
}

func (s *share[S]) list(busy bool) *list.List {
	if busy {
		return &s.working
	}
	return &s.idle
}

// push adds a place that has been busy or idle since a time, in its order.
func (s *share[S]) push(p *Place[S], busy bool, since time.Time) {
	p.busy, p.since = busy, since
	all := s.list(busy)
	before := all.Back()
	for before != nil && before.Value.(*Place[S]).since.After(since) {
		before = before.Prev()
	}
	if before == nil {
		p.element = all.PushFront(p)
	} else {
		p.element = all.InsertAfter(p, before)
	}
}

// leastUseful returns the place that has been idle for longest, or else the one that has been busy for longest.
func (s *share[S]) leastUseful() *Place[S] {
	front := s.idle.Front()
	if front == nil {
		front = s.working.Front()
	}
	return front.Value.(*Place[S])
}

// ranking is a heap of sources: the source with the highest count is first, and among equals the one with the least
// useful place.
type ranking[S comparable] []*share[S]

func (r ranking[S]) Len() int { return len(r) }

func (r ranking[S]) Less(i, j int) bool {
	if a, b := r[i].counts(), r[j].counts(); a != b || a == 0 {
		return a > b
	}
	a, b := r[i].leastUseful(), r[j].leastUseful()
	if a.busy != b.busy {
		return !a.busy
	}
	return a.since.Before(b.since)
}

func (r ranking[S]) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].at, r[j].at = i, j
}

// Push implements heap.Interface.
func (r *ranking[S]) Push(s any) {
	added := s.(*share[S])
	added.at = len(*r)
	*r = append(*r, added)
}

// Pop implements heap.Interface.
func (r *ranking[S]) Pop() any {
	last := len(*r) - 1
	s := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return s
}
