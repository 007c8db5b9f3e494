package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

const (
	// gcPercent keeps garbage under 1 MiB. The runtime's own would let it grow to 4 MiB, several times what is in use.
	gcPercent = 25
	// maxProcs is enough for an agent; the runtime keeps memory for each, and a node may have a hundred processors.
	maxProcs = 2
)

// beLean sets the runtime up for a program that runs once per pod, except for what the environment says.
func beLean() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}
