package restarts

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sonde-mesh/sonde/restartbudget"
)

// selection finds which objects of one kind, such as budgets, select a pod at one moment.
type selection[R any] struct {
	matches    *matches[R]
	namespaces map[string]*selectable[R]
	workloads  map[restartbudget.WorkloadID]*selected[R]
}

// selectable are the objects of a namespace.
type selectable[R any] struct {
	objects []*R // in the order of newSelection's argument
	index   *index
}

// selected is the result for pods of a workload.
type selected[R any] struct {
	// labels are the labels of the last pod, by is its result.
	labels labels.Set
	by     []*R
	any    []bool // by index, which objects select any of the pods
}

// matches caches which objects select a pod until one of them changes. Comparing each pod with each object in each
// round would let tenants use any amount of the leader's time.
type matches[R any] struct {
	selector func(*R) *keptSelector

	mu      sync.Mutex
	indexes map[string]*index // by namespace
	ofPod   map[*pod]match
}

// match holds the indexes of the objects that select a pod.
type match struct {
	index  *index
	places []int32
}

func newMatches[R any](selector func(*R) *keptSelector) *matches[R] {
	return &matches[R]{selector: selector, indexes: map[string]*index{}, ofPod: map[*pod]match{}}
}

// newSelection takes the objects by namespace, and the approximate number of pods.
func (m *matches[R]) newSelection(objects map[string][]*R, pods int) *selection[R] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.ofPod) > 2*pods+100 { // many entries are for deleted or replaced pods
		clear(m.ofPod)
	}
	found := &selection[R]{matches: m, namespaces: map[string]*selectable[R]{},
		workloads: map[restartbudget.WorkloadID]*selected[R]{}}
	indexes := map[string]*index{}
	for namespace, all := range objects {
		selectors := make([]*keptSelector, len(all))
		for i, r := range all {
			selectors[i] = m.selector(r)
		}
		indexes[namespace] = m.indexes[namespace]
		if !indexes[namespace].isOf(selectors) {
			indexes[namespace] = newIndex(selectors)
		}
		found.namespaces[namespace] = &selectable[R]{all, indexes[namespace]}
	}
	m.indexes = indexes
	return found
}

// of returns the positions in the index of the objects that select a pod.
func (m *matches[R]) of(in *index, p *pod) []int32 {
	m.mu.Lock()
	known := m.ofPod[p]
	m.mu.Unlock()
	if known.index == in {
		return known.places
	}
	places := in.find(p.labels)
	m.mu.Lock()
	m.ofPod[p] = match{in, places}
	m.mu.Unlock()
	return places
}

// of returns the objects that select a guarded pod of a namespace, in their order. Most pods of a workload have equal
// labels, so it reuses the previous result for them.
func (s *selection[R]) of(namespace string, p *pod) []*R {
	in := s.namespaces[namespace]
	if in == nil {
		return nil
	}
	w := s.workloads[p.workload]
	switch {
	case w == nil:
		w = &selected[R]{any: make([]bool, len(in.objects))}
		s.workloads[p.workload] = w
	case maps.Equal(w.labels, p.labels):
		return w.by
	}
	places := s.matches.of(in.index, p)
	w.labels, w.by = p.labels, make([]*R, len(places))
	for i, place := range places {
		w.by[i], w.any[place] = in.objects[place], true
	}
	return w.by
}

// ofWorkload returns the objects that select any of the workload's pods that were passed to of: during a rollout, their
// labels may differ.
func (s *selection[R]) ofWorkload(id restartbudget.WorkloadID) []*R {
	w := s.workloads[id]
	if w == nil {
		return nil
	}
	var all []*R
	for place, r := range s.namespaces[id.Namespace].objects {
		if w.any[place] {
			all = append(all, r)
		}
	}
	return all
}

// index finds the selectors that match a pod without comparing the pod with each of them.
type index struct {
	selectors []*keptSelector
	// byLabel holds the positions of selectors by a label that a pod must have, anywhere the positions of all other
	// selectors.
	byLabel  map[label][]int32
	anywhere []int32
}

// label of a pod.
type label struct{ key, value string }

func newIndex(selectors []*keptSelector) *index {
	x := &index{selectors: selectors, byLabel: map[label][]int32{}}
	required, uses := make([][][]label, len(selectors)), map[label]int{}
	for i, s := range selectors {
		required[i] = s.requiredLabels()
		for _, alternatives := range required[i] {
			for _, l := range alternatives {
				uses[l]++
			}
		}
	}
	for i := range selectors {
		if len(required[i]) == 0 {
			x.anywhere = append(x.anywhere, int32(i))
			continue
		}
		// the rarest required label narrows the search most
		rarest := slices.MinFunc(required[i], func(a, b []label) int { return sum(uses, a) - sum(uses, b) })
		for _, l := range rarest {
			x.byLabel[l] = append(x.byLabel[l], int32(i))
		}
	}
	return x
}

func sum(uses map[label]int, all []label) (n int) {
	for _, l := range all {
		n += uses[l]
	}
	return n
}

// isOf reports whether the index was built from these selectors, in this order.
func (x *index) isOf(selectors []*keptSelector) bool {
	return x != nil && slices.EqualFunc(x.selectors, selectors, func(a, b *keptSelector) bool { return a.hash == b.hash })
}

// find returns the positions of the selectors that match labels, in order.
func (x *index) find(set labels.Set) []int32 {
	places := slices.Clone(x.anywhere)
	for key, value := range set {
		places = append(places, x.byLabel[label{key, value}]...)
	}
	slices.Sort(places)
	return slices.Clip(slices.DeleteFunc(places, func(place int32) bool { return !x.selectors[place].Matches(set) }))
}
