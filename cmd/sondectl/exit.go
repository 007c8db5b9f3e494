package main

import (
	"errors"
	"fmt"
)

// Exit codes, see rootHelp.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 3
	exitUnfinished  = 4
	exitFindings    = 5
	exitUnhealthy   = 6
)

// hasOutput reports whether the output of a command is written: it has done what it was asked for, whatever it has found.
func hasOutput(code int) bool {
	return code == exitOK || code == exitUnfinished || code == exitFindings || code == exitUnhealthy
}

// exitError is an error with an exit code other than exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitCode returns the exit code for an error of Execute. Errors from before a command's action are about flags and
// arguments.
func (c *cli) exitCode(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case c.working:
		return exitFailed
	default:
		return exitUsage
	}
}
