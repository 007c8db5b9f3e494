package meshview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMap compares Maps with ordinary maps. Earlier Maps must not change with later ones.
func TestMap(t *testing.T) {
	for _, names := range []int{1, 10, 100, 3000} {
		t.Run(strconv.Itoa(names), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(names)))
			var now, middle Map[int]
			want, wantMiddle := map[string]*int{}, map[string]*int{}
			put := func(name string, value *int) {
				now = now.With(name, value)
				if want[name] = value; value == nil {
					delete(want, name)
				}
			}
			for i := range 4 * names {
				name, value := fmt.Sprint("name-", r.IntN(names)), &i
				if r.IntN(3) == 0 {
					value = nil
				}
				put(name, value)
				if now.Get(name) != value || now.Len() != len(want) {
					t.Fatalf("after %d steps: Get(%s) = %v, want %v; Len() = %d, want %d", i+1, name, now.Get(name), value, now.Len(), len(want))
				}
				if i == 2*names {
					middle, wantMiddle = now, maps.Clone(want)
				}
			}
			for what, m := range map[string]struct{ got, want map[string]*int }{"last": {now.toMap(), want}, "earlier": {middle.toMap(), wantMiddle}} {
				if diff := cmp.Diff(m.want, m.got); diff != "" {
					t.Errorf("the %s Map, -want +got:\n%s", what, diff)
				}
			}
			for name := range now.All() {
				if now = now.With(name, nil); now.Get(name) != nil {
					t.Errorf("%s is there after it was removed", name)
				}
			}
			if now != (Map[int]{}) {
				t.Errorf("a Map from which all was removed is not the empty one, but has %d names", now.Len())
			}
		})
	}
}

// TestMapOfNamesWithOneHash puts names with the same hash into a leaf that cannot be split, below a path that can.
func TestMapOfNamesWithOneHash(t *testing.T) {
	var n *node[int]
	for i := range 3 * maxEntries {
		n = n.with(0, 64, entry[int]{strconv.Itoa(i), &i})
	}
	if n.children != nil || len(n.entries) != 3*maxEntries {
		t.Errorf("a leaf has %d entries, want %d", len(n.entries), 3*maxEntries)
	}
}
