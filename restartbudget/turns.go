package restartbudget

import (
	"cmp"
	"container/heap"
	"time"
)

// servedFor is how long a namespace's last grant is remembered.
const servedFor = time.Hour

// serve records a namespace's last grant.
func (s *State) serve(rec *record) {
	if namespace := rec.Workload.Namespace; rec.Granted.After(s.served[namespace]) {
		s.served[namespace] = rec.Granted
	}
}

// forgetServed drops old entries. It also drops entries in the future, which exist after the clock was set back.
func (s *State) forgetServed(now time.Time) {
	for namespace, at := range s.served {
		if age := now.Sub(at); age >= servedFor || age < 0 {
			delete(s.served, namespace)
		}
	}
}

// turns decides which namespace is next while all share a limit: the namespace with the fewest restarts in the last
// minute. If several have as few, which is common, since most numbers are small, the one whose last grant is oldest is
// next; then the one with the oldest request. So no namespace uses up the limit of the others, and a namespace that
// waits alone may use all of it.
type turns struct {
	waiting []*waiting // a heap
	granted map[string]int
	served  map[string]time.Time
}

// waiting has the indexes of a namespace's undecided candidates, oldest first.
type waiting struct {
	namespace string
	places    []int
}

// newTurns takes the candidates, oldest first, and for each namespace the number of restarts in the last minute and the
// time of the last grant. The caller may add grants to both maps while it decides.
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

// decide calls each for every candidate in turn.
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
		cmp.Compare(t.granted[a.namespace], t.granted[b.namespace]), t.served[a.namespace].Compare(t.served[b.namespace]),
		cmp.Compare(a.places[0], b.places[0]),
	) < 0
}

// Len implements heap.Interface.
func (t *turns) Len() int { return len(t.waiting) }

// Swap implements heap.Interface.
func (t *turns) Swap(i, j int) { t.waiting[i], t.waiting[j] = t.waiting[j], t.waiting[i] }

// Push implements heap.Interface. All namespaces are in the heap from the start.
func (t *turns) Push(w any) { t.waiting = append(t.waiting, w.(*waiting)) }

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	last := len(t.waiting) - 1
	w := t.waiting[last]
	t.waiting = t.waiting[:last]
	return w
}
