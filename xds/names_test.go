package xds

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNames adds and removes random names, and compares the sets with maps.
func TestNames(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	some := func() []string {
		var list []string
		for range random.IntN(6) {
			list = append(list, strconv.Itoa(random.IntN(20)))
		}
		return list
	}
	var n *names
	model := map[string]bool{}
	for range 2000 {
		before, was := n, slices.Clone(n.all())
		list := some()
		if random.IntN(2) == 0 {
			n = n.add(list...)
			for _, name := range list {
				model[name] = true
			}
		} else {
			n = n.remove((*names)(nil).add(list...))
			for _, name := range list {
				delete(model, name)
			}
		}
		var want []string
		for name := range model {
			want = append(want, name)
			if !n.has(name) {
				t.Fatalf("%q is not in %v", name, n.all())
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, slices.Clone(n.all())); diff != "" {
			t.Fatalf("names (-want +got):\n%s", diff)
		}
		if !slices.Equal(was, before.all()) {
			t.Fatal("a set has changed")
		}
		if again := (*names)(nil).add(want...); again != n {
			t.Fatal("equal names are two sets")
		}
	}
}

// TestNamesAreForgotten checks that the table does not keep unused sets.
func TestNamesAreForgotten(t *testing.T) {
	t.Parallel()
	hashes := make([]uint64, 0, 100)
	for i := range 100 {
		n := (*names)(nil).add("forgotten", strconv.Itoa(i))
		hashes = append(hashes, n.hash)
	}
	left := func() int {
		runtime.GC()
		sharedNames.mu.Lock()
		defer sharedNames.mu.Unlock()
		return len(slices.DeleteFunc(slices.Clone(hashes), func(h uint64) bool {
			_, ok := sharedNames.sets[h]
			return !ok
		}))
	}
	for left() > 0 { // the runtime drops each set in a separate goroutine, after a collection
		runtime.Gosched()
	}
}
