// Command sonde-exec runs the command of a guarded exec probe in the container of the probe, at the agent's request.
// The kubelet starts it there once, with the startup probe or postStart hook that it runs anyway (decision 086).
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/sonde-mesh/sonde/internal/execwire"
)

func main() {
	mode, start, err := execwire.Parse(os.Args[1:])
	if err == nil {
		err = run(mode, start)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, execwire.Program+":", err)
		os.Exit(1)
	}
}

func run(mode execwire.Mode, s execwire.Start) error {
	switch mode {
	case execwire.ModeStart:
		// The container must run even if the helper does not start: the agent then reports the reason.
		if err := startOnce(s); err != nil && !errors.Is(err, errRuns) {
			if s.Retried && firstTries(s.Directory) {
				return err // the kubelet shows it
			}
			fmt.Fprintln(os.Stderr, execwire.Program+":", err)
		}
		return become(s.Then)
	case execwire.ModeFork:
		return fork(s)
	case execwire.ModeServe:
		return serve(s)
	}
	return fmt.Errorf("mode %q: must be start", mode)
}
