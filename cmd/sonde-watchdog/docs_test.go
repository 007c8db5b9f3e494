package main

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/doctest"
)

// TestDocs parses each command line of sonde-watchdog in the README and in docs.
func TestDocs(t *testing.T) {
	doctest.CommandLines(t, "../..", newCommand)
}
