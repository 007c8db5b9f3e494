package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// What dpagent/guard/parent tells the processes that it starts, for an agent without a guard.
const (
	gcPercent = 50
	maxProcs  = 1
)

// tuneRuntime sets the runtime up for a program that runs once per pod, except for what the environment says.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}
