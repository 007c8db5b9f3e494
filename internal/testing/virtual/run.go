package virtual

import (
	"testing"
	"testing/synctest"
)

// Run runs a subtest in its own bubble.
func Run(t *testing.T, name string, f func(t *testing.T)) bool {
	t.Helper()
	return t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
}
