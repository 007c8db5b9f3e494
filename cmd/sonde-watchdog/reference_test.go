package main

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

var update = flag.Bool("update", false, "write docs/reference/sonde-watchdog.md")

// TestReferenceGolden compares docs/reference/sonde-watchdog.md with the flags.
func TestReferenceGolden(t *testing.T) {
	page := doctest.Page(newCommand(&options{}), doctest.Options{
		About: "An environment variable can set each flag. A flag takes precedence over its variable. Exit code 0: done; 1: failed; 2: wrong usage.",
		Variable: func(_ *cobra.Command, f *pflag.Flag) string {
			return settings.Variable(envPrefix, f)
		},
		Key: func(*cobra.Command, *pflag.Flag) string { return "" }, // --config names a file of another program
	})
	doctest.Golden(t, *update, "../../docs/reference/sonde-watchdog.md", page)
}
