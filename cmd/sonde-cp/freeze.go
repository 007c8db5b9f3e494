package main

import (
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/controller/freeze"
)

// flagFreezeMode is read again when the file changes.
const flagFreezeMode = "freeze-mode"

func addFreezeFlags(flags *pflag.FlagSet, mode *freeze.Mode) {
	flags.StringVar((*string)(mode), flagFreezeMode, string(freeze.Enforce),
		"`MODE` of what becomes of a mesh whose nodes or proxies fall silent: enforce, endpoints stay and nothing follows from the silence; dryRun, that is judged and shown alone; or off; read again when the --config file changes, and without effect on a directory of files")
}
