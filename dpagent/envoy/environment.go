package envoy

import (
	"os"
	"slices"
	"strings"
)

// passed are the variables that Envoy gets: what the C library reads to load it, to resolve names and for the time. It gets nothing else:
// variables of the agent may hold secrets, and Envoy's admin interface and crash dumps are not where those belong.
var passed = []string{"HOME", "LD_LIBRARY_PATH", "LOCALDOMAIN", "PATH", "RES_OPTIONS", "TMPDIR", "TZ"}

// environment returns the variables for Envoy.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return !slices.Contains(passed, name)
	})
}
