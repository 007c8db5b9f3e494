package main

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings/reference"
)

// TestDocs parses each command line of sonde-cp in the README and in docs.
func TestDocs(t *testing.T) {
	reference.CommandLines(t, "../..", newCommand)
}
