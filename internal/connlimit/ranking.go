package connlimit

import (
	"container/list"
	"time"
)

// share is what one source has of the places.
type share[S comparable] struct {
	source        S
	few           int       // see fewOf
	idle, working list.List // of *Place, those that are so for longest first
	at            int       // in the ranking
}

func (s *share[S]) taken() int { return s.idle.Len() + s.working.Len() }

// fewOf returns up to how many places count as one: where a source with two loses before many with one each, a host that asks for two things at once
// is cut off in the midst of an answer by a flood from many addresses.
func fewOf(total int) int { return max(1, total/128) }

// counts returns what the source counts for where one is to lose a place, 0 if it has none.
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

// push adds a place that has been busy or idle since then, in its order.
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

// leastUseful returns an idle place, else a busy one, of these the one that is so for longest.
func (s *share[S]) leastUseful() *Place[S] {
	front := s.idle.Front()
	if front == nil {
		front = s.working.Front()
	}
	return front.Value.(*Place[S])
}

// ranking is a heap of sources: first the one that counts most, and of those that count as much the one whose place is the least useful.
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
