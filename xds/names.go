package xds

import "slices"

// names is a sorted list without doubles: a quarter of the memory of a map, and a stream holds thousands.
type names []string

func (n names) has(name string) bool {
	_, ok := slices.BinarySearch(n, name)
	return ok
}

// add returns n with more, which is not kept.
func (n names) add(more ...string) names {
	if len(more) == 0 {
		return n
	}
	if len(more) == 1 {
		if i, ok := slices.BinarySearch(n, more[0]); !ok {
			n = slices.Insert(n, i, more[0])
		}
		return n
	}
	n = slices.Concat(n, more)
	slices.Sort(n)
	return slices.Clip(slices.Compact(n))
}

// remove returns n without those called gone.
func (n names) remove(gone names) names {
	if len(gone) == 0 {
		return n
	}
	return slices.DeleteFunc(n, gone.has)
}
