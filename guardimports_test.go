package sonde_test

import (
	"strings"
	"testing"
)

// TestGuardStandsOnLittle forbids imports that depend on most of the program, because dpagent/guard would initialise
// late.
func TestGuardStandsOnLittle(t *testing.T) {
	packages, seen := list(t), map[string]bool{}
	var visit func(importPath string)
	visit = func(importPath string) {
		if seen[importPath] {
			return
		}
		seen[importPath] = true
		own, isOurs := directoryOf(importPath)
		switch {
		case importPath == "net" || importPath == "fmt" || importPath == "encoding/json":
			t.Errorf("it imports %s", importPath)
		case isOurs && (own == "internal/shutdown" || under(own, []string{"dpagent/guard"})): // have no variables to initialise
		case strings.Contains(importPath, "."):
			t.Errorf("it imports %s", importPath)
		}
		for _, i := range packages[importPath].Imports {
			visit(i)
		}
	}
	visit(module + "/dpagent/guard")
	if len(seen) < 10 {
		t.Errorf("it imports only %d packages: go list does not know it", len(seen))
	}
}
