package store

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestProblemsSince shows since when a problem exists, and which object it is about, while other files change.
func TestProblemsSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDir(DirOptions{})
		orphan := entry{Document: Document{Object: &mesh.Dataplane{Meta: mesh.Meta{Mesh: "shpo", Name: "web-1"}}}}
		first := orphan.problem(field{path: "mesh", line: 2}, "shpo", "must be the name of a Mesh: shop")
		if want := (mesh.Key{Kind: mesh.KindDataplane, Mesh: "shpo", Name: "web-1"}); first.Object != want {
			t.Errorf("it is about %v, want %v", first.Object, want)
		}
		began := time.Now()
		d.report([]Problem{first})
		time.Sleep(time.Minute)
		d.report([]Problem{{Place: Place{File: "other"}, Err: errNoObject}, first})
		for i, want := range []time.Time{began.Add(time.Minute), began} {
			if got := d.Problems()[i].Since; !got.Equal(want) {
				t.Errorf("problem %d is there since %s, want %s", i, got, want)
			}
		}
	})
}
