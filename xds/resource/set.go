package resource

import (
	"cmp"
	"slices"
)

// Set is an immutable set of resources, unique by type and name. A nil *Set is empty. A set made by With shares with its
// predecessor every resource, and every list of a type, that did not change.
type Set struct {
	byType [typeCount][]*Resource // by Type.index, each sorted by name
	id     *identity
	before *identity // of the predecessor; nil if the set was made by NewSet
	delta  *Delta    // from before to this one
}

const typeCount = 4 // len(Types())

// identity tells sets apart without keeping them alive: a set that referred to its predecessor would keep all of them.
type identity struct{ _ byte }

// Delta is the difference between two sets. It is shared: do not modify it.
type Delta struct {
	Put    []*Resource // sorted by type and name
	Old    []*Resource // for each of Put the resource that it replaces, nil for a new one
	Remove []Name      // sorted by type and name
}

// NewSet returns a set of these resources. Of two with the same type and name the later one wins.
func NewSet(resources ...*Resource) *Set {
	if s := (*Set)(nil).With(resources, nil); s != nil {
		return s
	}
	return &Set{id: new(identity)}
}

// With returns a set with some resources put and others removed; a name in both is put. A resource whose version s has
// already is not replaced, and if nothing changes With returns s. The cost is that of the change, and a copy of the list of
// pointers of each type that changed.
func (s *Set) With(put []*Resource, remove []Name) *Set {
	d := s.change(put, remove)
	if len(d.Put)+len(d.Remove) == 0 {
		return s
	}
	next := &Set{id: new(identity)}
	if s != nil {
		next.before, next.delta, next.byType = s.id, d, s.byType
	}
	for i, part := range d.split() {
		if len(part.Put)+len(part.Remove) > 0 {
			next.byType[i] = merge(next.byType[i], part)
		}
	}
	return next
}

// change returns what differs from s, sorted and without duplicates.
func (s *Set) change(put []*Resource, remove []Name) *Delta {
	d := &Delta{}
	named := make(map[Name]bool, len(put)+len(remove))
	for _, r := range slices.Backward(put) {
		if named[r.Key()] {
			continue
		}
		named[r.Key()] = true
		if old := s.Get(r.Key()); old == nil || old.Version != r.Version {
			d.Put = append(d.Put, r)
		}
	}
	for _, n := range remove {
		if !named[n] && s.Get(n) != nil {
			d.Remove = append(d.Remove, n)
		}
		named[n] = true
	}
	d.finish(s)
	return d
}

// finish sorts the delta and fills in Old.
func (d *Delta) finish(from *Set) {
	slices.SortFunc(d.Put, func(a, b *Resource) int { return a.Key().compare(b.Key()) })
	slices.SortFunc(d.Remove, Name.compare)
	d.Old = make([]*Resource, 0, len(d.Put))
	for _, r := range d.Put {
		d.Old = append(d.Old, from.Get(r.Key()))
	}
}

// split splits a delta by type.
func (d *Delta) split() (parts [typeCount]Delta) {
	for _, r := range d.Put {
		p := &parts[r.Type.index()]
		p.Put = append(p.Put, r)
	}
	for _, n := range d.Remove {
		p := &parts[n.Type.index()]
		p.Remove = append(p.Remove, n)
	}
	return parts
}

// merge applies a delta of one type to the list of that type.
func merge(list []*Resource, d Delta) []*Resource {
	merged := make([]*Resource, 0, len(list)+len(d.Put))
	put, remove := d.Put, d.Remove
	for _, r := range list {
		for len(put) > 0 && put[0].Name < r.Name {
			merged, put = append(merged, put[0]), put[1:]
		}
		switch {
		case len(put) > 0 && put[0].Name == r.Name:
			merged, put = append(merged, put[0]), put[1:]
		case len(remove) > 0 && remove[0].Name == r.Name:
			remove = remove[1:]
		default:
			merged = append(merged, r)
		}
	}
	return append(merged, put...)
}

// Get returns the resource with that name, nil if there is none.
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

// Diff returns the difference between two sets. It is free if With made to out of from; else the lists are compared.
func Diff(from, to *Set) *Delta {
	switch {
	case from == to:
		return &Delta{}
	case from != nil && to != nil && to.before == from.id:
		return to.delta
	}
	d := &Delta{}
	for _, t := range Types() {
		compare(d, from.Of(t), to.Of(t))
	}
	d.finish(from)
	return d
}

// compare adds the difference between two lists of one type to d.
func compare(d *Delta, from, to []*Resource) {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(to) == 0 || len(from) > 0 && from[0].Name < to[0].Name:
			d.Remove, from = append(d.Remove, from[0].Key()), from[1:]
		case len(from) == 0 || to[0].Name < from[0].Name:
			d.Put, to = append(d.Put, to[0]), to[1:]
		default:
			if from[0] != to[0] && from[0].Version != to[0].Version {
				d.Put = append(d.Put, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
}
