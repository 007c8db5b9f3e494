package xds

import (
	"hash/maphash"
	"runtime"
	"slices"
	"sync"
	"weak"
)

// names is a set of names that does not change. Streams that hold the same names hold the same set: most proxies of a mesh
// subscribe to the same thousands, and a list for each would be most of the memory of a stream. nil is empty.
type names struct {
	sorted []string
	hash   uint64 // of all, in any order
}

func (n *names) all() []string {
	if n == nil {
		return nil
	}
	return n.sorted
}

func (n *names) len() int { return len(n.all()) }

func (n *names) has(name string) bool {
	_, ok := slices.BinarySearch(n.all(), name)
	return ok
}

// add returns the set with more, which is not kept.
func (n *names) add(more ...string) *names {
	fresh := slices.DeleteFunc(slices.Clone(more), n.has)
	if len(fresh) == 0 {
		return n
	}
	slices.Sort(fresh)
	fresh = slices.Compact(fresh)
	return sharedNames.share(merge(n.all(), fresh), n.toggled(fresh))
}

// remove returns the set without those called gone.
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
	return sharedNames.share(left, n.toggled(there))
}

// merge returns the names of two sorted lists that have none in common.
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

// toggled is the hash with these names more, if they are not in the set, or less.
func (n *names) toggled(some []string) uint64 {
	var hash uint64
	if n != nil {
		hash = n.hash
	}
	for _, name := range some {
		hash ^= maphash.String(nameSeed, name)
	}
	return hash
}

// sharedNames are the sets that a stream holds, of all servers of this process.
var sharedNames = shelf{sets: map[uint64]weak.Pointer[names]{}}

// shelf finds sets by their hash without holding them. Of two with one hash it knows the newer.
type shelf struct {
	mu   sync.Mutex
	sets map[uint64]weak.Pointer[names]
}

// share returns the set of these sorted names.
func (s *shelf) share(sorted []string, hash uint64) *names {
	if len(sorted) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.sets[hash].Value(); n != nil && slices.Equal(n.sorted, sorted) {
		return n
	}
	n := &names{sorted: sorted, hash: hash}
	s.sets[hash] = weak.Make(n)
	runtime.AddCleanup(n, s.forget, hash)
	return n
}

// forget drops a set that is no more, unless there is another one of its hash.
func (s *shelf) forget(hash uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sets[hash].Value() == nil {
		delete(s.sets, hash)
	}
}
