package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// Go runtime settings of an agent without a guard. dpagent/guard and its worker have the same settings.
const (
	gcPercent = 40
	maxProcs  = 1
)

// tuneRuntime reduces the memory and threads of a program that runs once per pod, unless GOGC or GOMAXPROCS is set.
func tuneRuntime() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) > maxProcs {
		runtime.GOMAXPROCS(maxProcs)
	}
}
