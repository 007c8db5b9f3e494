package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// The settings that dpagent/guard gives itself and its worker, for an agent without a guard.
const (
	gcPercent = 40
	maxProcs  = 1
)

// tuneRuntime sets up Go's runtime for a program that runs once per pod, unless the environment does.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}
