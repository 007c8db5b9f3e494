// Package shutdown lists the signals that make a program shut down in an orderly way.
package shutdown

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals returns SIGINT, SIGTERM, and SIGHUP, which a closed terminal sends. It leaves out SIGHUP if that is ignored,
// as by nohup for programs that should outlive their terminal, since listening for it would undo that. Call it before
// listening.
func Signals() []os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}
