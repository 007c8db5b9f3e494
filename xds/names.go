package xds

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// names is an immutable set of names; nil is the empty set. Streams with the same names share one set, since most
// proxies of a mesh subscribe to the same thousands of names, which would otherwise be most of the memory of a stream.
type names struct {
	sorted []string
	hash   uint64 // hash of the names, independent of their order
	bytes  int    // total length of the names
}

func (n *names) all() []string {
	if n == nil {
		return nil
	}
	return n.sorted
}

func (n *names) len() int { return len(n.all()) }

// size returns the names' share of maxNameBytes.
func (n *names) size() int {
	if n == nil {
		return 0
	}
	return n.bytes + nameOverhead*len(n.sorted)
}

func (n *names) has(name string) bool {
	_, ok := slices.BinarySearch(n.all(), name)
	return ok
}

// add returns the set with more added. It does not keep the slice more.
func (n *names) add(more ...string) *names {
	fresh := slices.DeleteFunc(slices.Clone(more), n.has)
	if len(fresh) == 0 {
		return n
	}
	slices.Sort(fresh)
	fresh = slices.Compact(fresh)
	return sharedNames.intern(merge(n.all(), fresh), n.hashWith(fresh))
}

// remove returns the set without the names in gone.
func (n *names) remove(gone *names) *names {
	there := slices.DeleteFunc(slices.Clone(gone.all()), func(name string) bool { return !n.has(name) })
	if len(there) == 0 {
		return n
	}
	left := make([]string, 0, n.len()-len(there))
	for _, name := range n.all() {
		if !gone.has(name) {
			left = append(left, name)
		}
	}
	return sharedNames.intern(left, n.hashWith(there))
}

// merge merges two sorted lists that have no name in common.
func merge(a, b []string) []string {
	merged := make([]string, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0] < b[0] {
			merged, a = append(merged, a[0]), a[1:]
		} else {
			merged, b = append(merged, b[0]), b[1:]
		}
	}
	return append(append(merged, a...), b...)
}

var nameSeed = maphash.MakeSeed()

// hashWith returns the hash of the set after each name of some is added to it, or removed if the set contains it.
func (n *names) hashWith(some []string) uint64 {
	var hash uint64
	if n != nil {
		hash = n.hash
	}
	for _, name := range some {
		hash ^= maphash.String(nameSeed, name)
	}
	return hash
}

// sharedNames has the sets that the streams of this process use.
var sharedNames = nameTable{sets: map[uint64]weak.Pointer[names]{}}

// nameTable finds sets by their hash, without keeping them in memory. If two sets have the same hash, it finds only the
// newer one.
type nameTable struct {
	mu   sync.Mutex
	sets map[uint64]weak.Pointer[names]
}

func bytesOf(list []string) int {
	size := 0
	for _, name := range list {
		size += len(name)
	}
	return size
}

// intern returns the one set with these sorted names.
func (s *nameTable) intern(sorted []string, hash uint64) *names {
	if len(sorted) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.sets[hash].Value(); n != nil && slices.Equal(n.sorted, sorted) {
		return n
	}
	n := &names{sorted: sorted, hash: hash, bytes: bytesOf(sorted)}
	s.sets[hash] = weak.Make(n)
	runtime.AddCleanup(n, s.forget, hash)
	return n
}

// forget removes a set that no stream uses from the table, unless a set with the same hash has replaced it.
func (s *nameTable) forget(hash uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sets[hash].Value() == nil {
		delete(s.sets, hash)
	}
}
