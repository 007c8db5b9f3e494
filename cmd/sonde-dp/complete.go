package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// words has the values of flags that take one of a few.
var words = map[string][]string{
	"log-level":           {"debug", "info", "warn", "error"},
	"virtual-probes-mode": {string(mesh.ProbesUnified), string(mesh.ProbesPerPort)},
	"ip-family-mode":      {string(redirect.DualStack), string(redirect.IPv4), string(redirect.IPv6)},
}

// completeWords has a shell complete words, for a command and those below it.
func completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		of, few := words[f.Name]
		if !few {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag is there, and this is the only one who completes it
		}
	})
	for _, sub := range cmd.Commands() {
		completeWords(sub)
	}
}
