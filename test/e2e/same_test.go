//go:build e2e

package e2e

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// side is a kind of namespace whose pods must behave like pods without a mesh.
type side string

const (
	plain     side = "plain"
	inMesh    side = "mesh"
	inPerPort side = "per-port" // in the mesh, with the per-port mode of probes
)

var labelsOf = map[side]map[string]string{plain: outside, inMesh: injected, inPerPort: perPort}

// onSides runs a test in each kind of namespace, at the same time, and returns the results.
func onSides[T any](t *testing.T, run func(n *namespace) T, sides ...side) map[side]T {
	t.Helper()
	var mu sync.Mutex
	results := map[side]T{}
	passed := t.Run("all", func(t *testing.T) {
		for _, s := range sides {
			t.Run(string(s), func(t *testing.T) {
				t.Parallel()
				result := run(newNamespace(t, labelsOf[s]))
				mu.Lock()
				defer mu.Unlock()
				results[s] = result
			})
		}
	})
	if !passed {
		t.FailNow()
	}
	return results
}

// same runs a test in a mesh and without one, and returns both results.
func same[T any](t *testing.T, run func(n *namespace) T) (mesh, without T) {
	t.Helper()
	results := onSides(t, run, plain, inMesh)
	return results[inMesh], results[plain]
}

// attempts is how often tests run if pods behave differently: on a machine that stalls for seconds, a kubelet's
// probes fail without a mesh, too.
const attempts = 3

// sameLife runs a test without a mesh, in a mesh, and on other sides, and compares what happened to the
// containers.
func sameLife(t *testing.T, run func(n *namespace) history, more ...side) {
	t.Helper()
	for attempt := 1; attempt <= attempts; attempt++ {
		results := onSides(t, run, append(more, plain, inMesh)...)
		t.Logf("%+v", results[plain])
		differs := false
		for s, life := range results {
			if d := cmp.Diff(results[plain], life); d != "" {
				differs = true
				t.Logf("attempt %d: what happened without a mesh (-) and in %s (+):\n%s", attempt, s, d)
			}
		}
		if !differs {
			return
		}
	}
	t.Errorf("different in the mesh %d times", attempts)
}
