package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/redirect"
)

// words lists the values of each flag that accepts only fixed values.
var words = map[string][]string{
	"log-level":           {"debug", "info", "warn", "error"},
	"log-format":          {"text", "json"},
	"virtual-probes-mode": {string(mesh.ProbesUnified), string(mesh.ProbesPerPort)},
	"ip-family-mode":      {string(redirect.DualStack), string(redirect.IPv4), string(redirect.IPv6)},
}

// completeWords makes shells complete the values in words, for a command and its subcommands.
func completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		of, few := words[f.Name]
		if !few {
			return
		}
		words := cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp)
		if err := cmd.RegisterFlagCompletionFunc(f.Name, words); err != nil {
			panic(err) // the flag exists and has no other completion
		}
	})
	for _, sub := range cmd.Commands() {
		completeWords(sub)
	}
}
