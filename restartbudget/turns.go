package restartbudget

import (
	"cmp"
	"container/heap"
	"time"
)

// servedFor is how long it is known when a namespace was granted something.
const servedFor = time.Hour

// serve notes that a namespace was granted something.
func (s *State) serve(rec *record) {
	if namespace := rec.Workload.Namespace; rec.Granted.After(s.served[namespace]) {
		s.served[namespace] = rec.Granted
	}
}

// forgetServed drops what is too long ago. Of a clock that was set back nothing is known, either.
func (s *State) forgetServed(now time.Time) {
	for namespace, at := range s.served {
		if age := now.Sub(at); age >= servedFor || age < 0 {
			delete(s.served, namespace)
		}
	}
}

// turns says whose turn it is while a limit is shared by all: of the namespaces that have requests left the one with the fewest restarts within the last
// minute; of those the one that was granted one the longest ago, as minutes in which each has few tell little; and of those the one whose request is the
// oldest. So none can use up a limit for the others, and one that is alone has all of it.
type turns struct {
	waiting []*waiting // a heap
	granted map[string]int
	served  map[string]time.Time
}

// waiting are the places of the candidates of a namespace on which no decision was made, oldest first.
type waiting struct {
	namespace string
	places    []int
}

// newTurns has the candidates, oldest first, and by namespace the restarts of the last minute, and when the last one was granted. Both may grow meanwhile.
func newTurns(candidates []candidate, granted map[string]int, served map[string]time.Time) *turns {
	t, of := &turns{granted: granted, served: served}, map[string]*waiting{}
	for i := range candidates {
		namespace := candidates[i].Workload.Namespace
		w := of[namespace]
		if w == nil {
			w = &waiting{namespace: namespace}
			of[namespace] = w
			t.waiting = append(t.waiting, w)
		}
		w.places = append(w.places, i)
	}
	heap.Init(t)
	return t
}

// decide calls for each candidate in turn.
func (t *turns) decide(each func(place int)) {
	for len(t.waiting) > 0 {
		w := t.waiting[0]
		place := w.places[0]
		w.places = w.places[1:]
		each(place)
		if len(w.places) == 0 {
			heap.Pop(t)
		} else {
			heap.Fix(t, 0)
		}
	}
}

// Less implements heap.Interface.
func (t *turns) Less(i, j int) bool {
	a, b := t.waiting[i], t.waiting[j]
	return cmp.Or(
		cmp.Compare(t.granted[a.namespace], t.granted[b.namespace]), t.served[a.namespace].Compare(t.served[b.namespace]), cmp.Compare(a.places[0], b.places[0]),
	) < 0
}

// Len implements heap.Interface.
func (t *turns) Len() int { return len(t.waiting) }

// Swap implements heap.Interface.
func (t *turns) Swap(i, j int) { t.waiting[i], t.waiting[j] = t.waiting[j], t.waiting[i] }

// Push implements heap.Interface. All namespaces are there from the start.
func (t *turns) Push(w any) { t.waiting = append(t.waiting, w.(*waiting)) }

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	last := len(t.waiting) - 1
	w := t.waiting[last]
	t.waiting = t.waiting[:last]
	return w
}
