// Package early runs the guard, if this process is one, in an init function: before the packages are initialised that only
// a worker needs, whose tables and types would take twice the memory of the guard itself, once per pod. For the same reason
// it imports little. docs/decisions/011-agents-death.md has the figures.
package early

import (
	"os"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/parent"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

const (
	portFlag      = "--virtual-probes-port"
	tableVariable = "KUMA_DATAPLANE_PROBES"
)

func init() {
	switch {
	case wire.ParseRole(os.Getenv(wire.Env)).Worker:
		syscall.CloseOnExec(wire.FD) // programs that the worker starts must not inherit it
	case answersProbes(os.Args, os.Getenv(tableVariable)):
		parent.Reexec(os.Args, os.Environ())
		os.Exit(parent.Run(parent.Options{
			Args: os.Args, Env: os.Environ(), Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		}))
	}
}

// answersProbes reports whether the program will answer probes. The worker checks the probes themselves.
func answersProbes(args []string, probes string) bool {
	if len(args) < 2 || !opensPort(args[2:]) {
		return false
	}
	switch args[1] {
	case "probes":
		return true
	case "run":
		probes = strings.TrimSpace(probes)
		return probes != "" && probes != "[]" && probes != "null"
	}
	return false
}

// opensPort reports whether the flag of the port is not 0. Like for pflag, the last one counts, and there is a default.
func opensPort(args []string) bool {
	port := "9000"
	for n := 0; n < len(args); n++ {
		name, value, ok := strings.Cut(args[n], "=")
		switch {
		case name == "--":
			return port != "0"
		case name != portFlag:
		case ok:
			port = value
		case n+1 < len(args):
			n++
			port = args[n]
		}
	}
	return port != "0"
}
