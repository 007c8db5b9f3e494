package resource

import (
	"cmp"
	"slices"
)

// Set is an immutable set of resources, unique by type and name. A nil *Set is empty. A set made by With shares
// unchanged resources, and unchanged lists of a type, with its predecessor.
type Set struct {
	byType [typeCount][]*Resource // by Type.index, each sorted by name
	id     *identity
	before *identity // identity of the predecessor; nil if NewSet made the set
	delta  Delta     // difference from the predecessor
}

const typeCount = 4 // len(Types())

// identity distinguishes sets without keeping them alive: a set that referred to its predecessor would keep all
// predecessors.
type identity struct{ _ byte }

// Delta is the difference between two sets, sorted by type and name. It is shared: do not modify it.
type Delta []Change

// Change is a resource that differs between two sets.
type Change struct {
	Old *Resource // nil if it was added
	New *Resource // nil if it was removed
}

// Key returns the name of the resource.
func (c Change) Key() Name {
	if c.New != nil {
		return c.New.Key()
	}
	return c.Old.Key()
}

// NewSet returns a set of these resources. If two have the same type and name, the later one wins.
func NewSet(resources ...*Resource) *Set {
	if s := (*Set)(nil).With(resources, nil); s != nil {
		return s
	}
	return &Set{id: new(identity)}
}

// With returns a set with some resources put and others removed; a name in both is put. A resource whose version is
// unchanged is not replaced, and if nothing changes With returns s. The cost is proportional to the change, plus a copy
// of the list of pointers of each changed type.
func (s *Set) With(put []*Resource, remove []Name) *Set {
	d := s.change(put, remove)
	if len(d) == 0 {
		return s
	}
	next := &Set{id: new(identity)}
	if s != nil {
		next.before, next.delta, next.byType = s.id, d, s.byType
	}
	for len(d) > 0 {
		typ := d[0].Key().Type
		n := 1
		for n < len(d) && d[n].Key().Type == typ {
			n++
		}
		next.byType[typ.index()] = merge(s.Of(typ), d[:n])
		d = d[n:]
	}
	return next
}

// change returns the differences from s.
func (s *Set) change(put []*Resource, remove []Name) Delta {
	var d Delta
	named := make(map[Name]bool, len(put)+len(remove))
	for _, r := range slices.Backward(put) {
		if named[r.Key()] {
			continue
		}
		named[r.Key()] = true
		if old := s.Get(r.Key()); old == nil || old.Version != r.Version {
			d = append(d, Change{Old: old, New: r})
		}
	}
	for _, n := range remove {
		if old := s.Get(n); old != nil && !named[n] {
			d = append(d, Change{Old: old})
		}
		named[n] = true
	}
	slices.SortFunc(d, func(a, b Change) int { return a.Key().compare(b.Key()) })
	return d
}

// merge applies changes of one type to the list of that type.
func merge(list []*Resource, changes Delta) []*Resource {
	merged := make([]*Resource, 0, len(list)+len(changes))
	for _, r := range list {
		for len(changes) > 0 && changes[0].Old == nil && changes[0].New.Name < r.Name {
			merged, changes = append(merged, changes[0].New), changes[1:]
		}
		switch {
		case len(changes) == 0 || changes[0].Old != r:
			merged = append(merged, r)
		case changes[0].New != nil:
			merged, changes = append(merged, changes[0].New), changes[1:]
		default:
			changes = changes[1:]
		}
	}
	for _, c := range changes { // all remaining changes are new
		merged = append(merged, c.New)
	}
	return merged
}

// Get returns the resource with a name, nil if not found.
func (s *Set) Get(n Name) *Resource {
	list := s.Of(n.Type)
	i, ok := slices.BinarySearchFunc(list, n.Name, func(r *Resource, name string) int { return cmp.Compare(r.Name, name) })
	if !ok {
		return nil
	}
	return list[i]
}

// Of returns the resources of a type, sorted by name. The list is shared: do not modify it.
func (s *Set) Of(t Type) []*Resource {
	i := t.index()
	if s == nil || i < 0 {
		return nil
	}
	return s.byType[i]
}

// Diff returns the difference between two sets. It costs nothing if With made to from from; otherwise it compares the
// lists.
func Diff(from, to *Set) Delta {
	switch {
	case from == to:
		return nil
	case from != nil && to != nil && to.before == from.id:
		return to.delta
	}
	var d Delta
	for _, t := range Types() {
		d = appendDiff(d, from.Of(t), to.Of(t))
	}
	return d
}

// appendDiff adds the difference between two lists of one type to d.
func appendDiff(d Delta, from, to []*Resource) Delta {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && from[0].Name < to[0].Name:
			d, from = append(d, Change{Old: from[0]}), from[1:]
		case len(from) == 0 || to[0].Name < from[0].Name:
			d, to = append(d, Change{New: to[0]}), to[1:]
		default:
			if from[0] != to[0] && from[0].Version != to[0].Version {
				d = append(d, Change{Old: from[0], New: to[0]})
			}
			from, to = from[1:], to[1:]
		}
	}
	return d
}
