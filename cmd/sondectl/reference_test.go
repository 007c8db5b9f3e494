package main

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

var update = flag.Bool("update", false, "write docs/reference/sondectl.md")

// TestReferenceGolden compares docs/reference/sondectl.md with the flags.
func TestReferenceGolden(t *testing.T) {
	page := doctest.Page((&cli{}).root(), doctest.Options{
		About: "The flags of sondectl itself, which every command has, are also variables. A flag takes precedence over its variable. `sondectl --help` lists the exit codes.",
		Variable: func(cmd *cobra.Command, f *pflag.Flag) string {
			if cmd.HasParent() {
				return ""
			}
			return settings.Variable(envPrefix, f)
		},
		Key: func(*cobra.Command, *pflag.Flag) string {
			return ""
		},
	})
	doctest.Golden(t, *update, "../../docs/reference/sondectl.md", page)
}
