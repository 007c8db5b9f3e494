// Package shutdown knows the signals that ask a program to end in an orderly way.
package shutdown

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals returns SIGINT, SIGTERM, and SIGHUP, which a closed terminal sends. SIGHUP is left out if it is ignored, as nohup
// does for programs that shall outlive their terminal: to listen for it would undo that. Call it before listening.
func Signals() []os.Signal {
	all := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}
