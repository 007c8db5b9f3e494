package main

import (
	"errors"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Exit codes beside those of all programs, see rootHelp.
const (
	exitOK          = 0
	exitFailed      = settings.ExitFailed
	exitUsage       = settings.ExitUsage
	exitUnreachable = 3
	exitUnfinished  = 4
	exitFindings    = 5
	exitUnhealthy   = 6
)

// hasOutput reports whether the output of a command that ends with err is written: it has done what it was asked for, whatever it has found.
func hasOutput(err error) bool {
	exit, ok := errors.AsType[*exitError](err)
	return err == nil || ok && (exit.output || exit.code == exitUnfinished || exit.code == exitFindings || exit.code == exitUnhealthy)
}

// exitError is an error with an exit code of sondectl's own, or with output.
type exitError struct {
	code int
	err  error
	// output says that there is an output for programs, which says what is wrong.
	output bool
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitCode returns the exit code for an error of settings.Execute.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	return settings.ExitCode(err)
}
