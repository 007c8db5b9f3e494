package main

import (
	"errors"

	"github.com/sonde-mesh/sonde/settings"
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

// hasOutput reports whether the output of a command is written: it has done what it was asked for, whatever it has found.
func hasOutput(code int) bool {
	return code == exitOK || code == exitUnfinished || code == exitFindings || code == exitUnhealthy
}

// exitError is an error with an exit code of sondectl's own.
type exitError struct {
	code int
	err  error
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
