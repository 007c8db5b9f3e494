package meshview

import (
	"cmp"
	"hash/maphash"
	"iter"
	"slices"
)

// Map is an immutable map by name; the zero value is empty. With returns a changed copy that shares all but a few
// hundred bytes with the original, however large that is: most views differ from the previous one in a single service
// or proxy.
type Map[T any] struct {
	root *node[T]
	size int
}

// Parameters of a Map's tree: it branches by hashBits of a name's hash at each level, and a leaf splits when it has
// more than maxEntries.
const (
	hashBits   = 4
	branches   = 1 << hashBits
	maxEntries = 8
)

// node is a leaf with entries, or has children. An empty node is nil.
type node[T any] struct {
	children *[branches]*node[T]
	entries  []entry[T] // sorted by name
}

type entry[T any] struct {
	name  string
	value *T
}

var hashSeed = maphash.MakeSeed()

func hashOf(name string) uint64 { return maphash.String(hashSeed, name) }

// Len returns the number of names.
func (m Map[T]) Len() int { return m.size }

// Get returns the value of a name, nil if it has none.
func (m Map[T]) Get(name string) *T {
	n := m.root
	for hash := hashOf(name); n != nil && n.children != nil; hash >>= hashBits {
		n = n.children[hash%branches]
	}
	if n == nil {
		return nil
	}
	i, ok := n.find(name)
	if !ok {
		return nil
	}
	return n.entries[i].value
}

// All returns all names and values, in no order.
func (m Map[T]) All() iter.Seq2[string, *T] {
	return func(yield func(string, *T) bool) { m.root.each(yield) }
}

// Names returns the names, in no order.
func (m Map[T]) Names() []string {
	all := make([]string, 0, m.size)
	for name := range m.All() {
		all = append(all, name)
	}
	return all
}

// With returns a Map with another value of a name; nil removes it.
func (m Map[T]) With(name string, value *T) Map[T] {
	size := m.size
	if m.Get(name) != nil {
		size--
	}
	if value != nil {
		size++
	}
	return Map[T]{root: m.root.with(hashOf(name), 0, entry[T]{name, value}), size: size}
}

func (n *node[T]) find(name string) (int, bool) {
	return slices.BinarySearchFunc(n.entries, name, func(e entry[T], name string) int { return cmp.Compare(e.name, name) })
}

func (n *node[T]) each(yield func(string, *T) bool) bool {
	if n == nil {
		return true
	}
	for _, e := range n.entries {
		if !yield(e.name, e.value) {
			return false
		}
	}
	if n.children != nil {
		for _, c := range n.children {
			if !c.each(yield) {
				return false
			}
		}
	}
	return true
}

// with returns the node with e instead of its entry for that name. used is the number of bits of the hash that led to
// the node.
func (n *node[T]) with(hash uint64, used int, e entry[T]) *node[T] {
	if n == nil {
		n = &node[T]{}
	}
	if n.children == nil {
		return n.leafWith(used, e)
	}
	children, at := *n.children, hash>>used%branches
	children[at] = children[at].with(hash, used+hashBits, e)
	if children == [branches]*node[T]{} {
		return nil
	}
	return &node[T]{children: &children}
}

func (n *node[T]) leafWith(used int, e entry[T]) *node[T] {
	i, ok := n.find(e.name)
	after := n.entries[i:]
	if ok {
		after = after[1:]
	}
	var entries []entry[T]
	if e.value != nil {
		entries = slices.Concat(n.entries[:i], []entry[T]{e}, after)
	} else {
		entries = slices.Concat(n.entries[:i], after)
	}
	if len(entries) == 0 {
		return nil
	}
	if len(entries) <= maxEntries || used >= 64 { // names with equal hashes stay together
		return &node[T]{entries: entries}
	}
	var children [branches]*node[T]
	for _, e := range entries {
		hash := hashOf(e.name)
		at := hash >> used % branches
		children[at] = children[at].with(hash, used+hashBits, e)
	}
	return &node[T]{children: &children}
}
