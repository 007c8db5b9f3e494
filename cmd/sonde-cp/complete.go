package main

import (
	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/restartbudget"
	"github.com/sonde-mesh/sonde/webhook"
)

// words lists the values of each flag that accepts only fixed values.
var words = map[string][]string{
	"log-level":           {"debug", "info", "warn", "error"},
	"log-format":          {"text", "json"},
	"virtual-probes-mode": {string(mesh.ProbesUnified), string(mesh.ProbesPerPort)},
	"sidecar-form":        {string(webhook.Native), string(webhook.Container)},
	"cni":                 {string(webhook.CNIOff), string(webhook.CNINamespaces), string(webhook.CNIAll)},
	"store":               {"dir:", storeKubernetes},
	flagFreezeMode:        {string(freeze.Enforce), string(freeze.DryRun), string(freeze.Off)},
	flagGuardedMode:       {string(restartbudget.Enforce), string(restartbudget.DryRun), string(restartbudget.Off)},
}

// completeWords makes shells complete the values in words.
func completeWords(cmd *cobra.Command) {
	for flag, of := range words {
		directive := cobra.ShellCompDirectiveNoFileComp
		if flag == "store" {
			directive |= cobra.ShellCompDirectiveNoSpace // the user types the path next
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(of, directive)); err != nil {
			panic(err) // the flag exists and has no other completion
		}
	}
}
