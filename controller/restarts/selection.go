package restarts

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// selection finds the objects of one kind, such as budgets, that select pods. It is of one moment.
type selection[R any] struct {
	selector func(*R) labels.Selector
	objects  map[string][]*R // by namespace, in the order of their names
	last     map[restartbudget.WorkloadID]selected[R]
	ofAny    map[restartbudget.WorkloadID]map[*R]bool // those that select one of the pods that were asked about
}

// selected are the objects that select pods with these labels.
type selected[R any] struct {
	labels labels.Set
	by     []*R
}

func newSelection[O watch.Object, R any](s *watch.Store[O, R], selector func(*R) labels.Selector) *selection[R] {
	found := &selection[R]{
		selector: selector, objects: map[string][]*R{},
		last: map[restartbudget.WorkloadID]selected[R]{}, ofAny: map[restartbudget.WorkloadID]map[*R]bool{},
	}
	keys := s.Keys()
	slices.SortFunc(keys, func(a, b watch.Key) int { return cmp.Compare(a.Name, b.Name) })
	for _, key := range keys {
		if r := s.Get(key); r != nil {
			found.objects[key.Namespace] = append(found.objects[key.Namespace], r)
		}
	}
	return found
}

// of returns the objects that select a guarded pod of a namespace, in the order of their names. Most pods of a workload have the same labels, so that
// the answer for the one before holds.
func (s *selection[R]) of(namespace string, p *pod) []*R {
	objects := s.objects[namespace]
	if len(objects) == 0 {
		return nil
	}
	if last, is := s.last[p.workload]; is && maps.Equal(last.labels, p.labels) {
		return last.by
	}
	var by []*R
	for _, r := range objects {
		if !s.selector(r).Matches(p.labels) {
			continue
		}
		by = append(by, r)
		if s.ofAny[p.workload] == nil {
			s.ofAny[p.workload] = map[*R]bool{}
		}
		s.ofAny[p.workload][r] = true
	}
	s.last[p.workload] = selected[R]{p.labels, by}
	return by
}

// ofWorkload returns the objects that select any pod of a workload that was asked about: in a rollout, pods may have other labels than those before.
func (s *selection[R]) ofWorkload(id restartbudget.WorkloadID) []*R {
	var all []*R
	for _, r := range s.objects[id.Namespace] {
		if s.ofAny[id][r] {
			all = append(all, r)
		}
	}
	return all
}
