package main

import (
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/controller/freeze"
)

// flagFreezeMode is reloaded when the --config file changes.
const flagFreezeMode = "freeze-mode"

func addFreezeFlags(flags *pflag.FlagSet, mode *freeze.Mode) {
	flags.StringVar((*string)(mode), flagFreezeMode, string(freeze.Enforce),
		"`MODE` of freezing, for zones or meshes of which most nodes or proxies are silent: enforce keeps their endpoints; dryRun only reports what enforce would do; off does neither; reloaded when the --config file changes; ignored with --store=dir:PATH")
}
