// Package exit defines the exit codes of sondectl.
package exit

import (
	"errors"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Exit codes beside the common ones, see rootHelp.
const (
	OK          = 0
	Failed      = settings.ExitFailed
	Usage       = settings.ExitUsage
	Unreachable = 3
	Unfinished  = 4
	Findings    = 5
	Unhealthy   = 6
)

// HasOutput reports whether to write the output of a command that returned err: true if the command ran to its end,
// even if it found problems.
func HasOutput(err error) bool {
	exit, ok := errors.AsType[*Error](err)
	return err == nil || ok && (exit.Output || exit.Code == Unfinished || exit.Code == Findings || exit.Code == Unhealthy)
}

// Error is an error with an exit code of sondectl's own, or with output.
type Error struct {
	Code int
	Err  error
	// Output means that the command's output for programs describes the error.
	Output bool
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Code returns the exit code for an error of settings.Execute.
func Code(err error) int {
	if exit, ok := errors.AsType[*Error](err); ok {
		return exit.Code
	}
	return settings.ExitCode(err)
}
