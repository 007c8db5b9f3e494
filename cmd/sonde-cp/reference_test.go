package main

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

var update = flag.Bool("update", false, "write docs/reference/sonde-cp.md")

// TestReferenceGolden compares docs/reference/sonde-cp.md with the flags.
func TestReferenceGolden(t *testing.T) {
	page := doctest.Page(newCommand(&options{}), doctest.Options{
		About: "An environment variable or a key of the `--config` file can set each flag. A flag takes precedence over its variable, which takes precedence over its key. Exit code 0: done; 1: failed; 2: wrong usage.",
		Variable: func(_ *cobra.Command, f *pflag.Flag) string {
			return settings.Variable(envPrefix, f)
		},
		Key: func(_ *cobra.Command, f *pflag.Flag) string {
			if f.Name == "config" {
				return ""
			}
			return nested.Of(f.Name)
		},
	})
	doctest.Golden(t, *update, "../../docs/reference/sonde-cp.md", page)
}
