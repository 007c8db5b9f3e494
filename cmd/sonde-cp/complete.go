package main

import (
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/restartbudget"
	"github.com/sonde-mesh/sonde/webhook"
)

// words has the values of flags that take one of a few.
var words = map[string][]string{
	"log-level":           {"debug", "info", "warn", "error"},
	"virtual-probes-mode": {string(mesh.ProbesUnified), string(mesh.ProbesPerPort)},
	"sidecar-form":        {string(webhook.Native), string(webhook.Container)},
	"store":               {"dir:", storeKubernetes},
	flagFreezeMode:        {string(freeze.Enforce), string(freeze.DryRun), string(freeze.Off)},
	flagGuardedMode:       {string(restartbudget.Enforce), string(restartbudget.DryRun), string(restartbudget.Off)},
}

// completeWords has a shell complete words.
func completeWords(cmd *cobra.Command) {
	for flag, of := range words {
		directive := cobra.ShellCompDirectiveNoFileComp
		if flag == "store" {
			directive |= cobra.ShellCompDirectiveNoSpace // the path follows
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(of, directive)); err != nil {
			panic(err) // the flag is there, and this is the only one who completes it
		}
	}
}
