//go:build e2e

package e2e

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sides are the two kinds of namespaces whose pods must fare the same.
var sides = map[string]map[string]string{"mesh": injected, "plain": outside}

// same runs a test in a mesh and without one, at the same time, and returns both results.
func same[T any](t *testing.T, run func(n *namespace) T) (mesh, plain T) {
	t.Helper()
	var mu sync.Mutex
	results := map[string]T{}
	passed := t.Run("both", func(t *testing.T) {
		for name, labels := range sides {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				result := run(newNamespace(t, labels))
				mu.Lock()
				defer mu.Unlock()
				results[name] = result
			})
		}
	})
	if !passed {
		t.FailNow()
	}
	return results["mesh"], results["plain"]
}

// sameLife runs a test in a mesh and without one, and compares what happened to the containers.
func sameLife(t *testing.T, run func(n *namespace) history) {
	t.Helper()
	mesh, plain := same(t, run)
	if d := cmp.Diff(plain, mesh); d != "" {
		t.Errorf("what happened without a mesh (-) and in it (+):\n%s", d)
	}
	t.Logf("%+v", plain)
}
