package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

// TestDocs parses each command line of sonde-cp in the README and in docs.
func TestDocs(t *testing.T) {
	doctest.CommandLines(t, "../..", func() *cobra.Command { return newCommand(&options{}) })
}
