package envoy

import (
	"os"
	"slices"
	"strings"
)

// passed are the variables that Envoy gets: those that the C library reads for loading, for resolving names and for the
// time. Envoy gets no other, since variables of the agent may hold secrets, which must not appear in Envoy's admin
// interface or crash dumps.
var passed = []string{"HOME", "LD_LIBRARY_PATH", "LOCALDOMAIN", "PATH", "RES_OPTIONS", "TMPDIR", "TZ"}

// environment returns the variables for Envoy.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains(passed, name)
	})
}
