package settings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Exit codes of all programs.
const (
	ExitFailed = 1
	// ExitUsage is also the exit code of a Go program that panics, so it does not prove that a restart is useless.
	ExitUsage = 2
)

// UsageError is a mistake in a command line, or in a variable or configuration file that replaces a part of it.
type UsageError struct{ Err error }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Errorf(format, args...)} }

// Error implements error.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UsageError) Unwrap() error { return e.Err }

// ExitCode returns the exit code of a program that ends with err, which may be nil.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, usage := errors.AsType[*UsageError](err); usage {
		return ExitUsage
	}
	return ExitFailed
}

// Main runs a program as Execute does, writes errors to its stderr, and returns its exit code.
func Main(ctx context.Context, root *cobra.Command) int {
	_, err := Execute(ctx, root)
	if err != nil {
		root.PrintErrln(root.Name()+":", err)
	}
	return ExitCode(err)
}

// Execute runs a program to which Install was applied, once, and returns the command that was called. An error from
// before the command started is a UsageError.
func Execute(ctx context.Context, root *cobra.Command) (*cobra.Command, error) {
	refuseUnknown(root)
	began := false
	onRun(root, func() { began = true })
	var wrong error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) { // also called for a command that only has subcommands
		if wrong = called(cmd); wrong == nil {
			help(cmd, args)
		}
	})
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = wrong
	}
	if _, usage := errors.AsType[*UsageError](err); err != nil && !began && !usage {
		err = &UsageError{err}
	}
	return cmd, err
}

func onRun(cmd *cobra.Command, tell func()) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			tell()
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		onRun(sub, tell)
	}
}

// refusesFlag reports whether err means that a flag's value is invalid, rather than unusable, such as a port in use.
func refusesFlag(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), refusesFlag)
	}
	field, ok := errors.AsType[*mesh.FieldError](err)
	return ok && field.Err == nil && strings.HasPrefix(field.Field, "--")
}

// refuseUnknown makes Execute and the help command reject unknown commands. By default cobra prints the help, and
// succeeds.
func refuseUnknown(root *cobra.Command) {
	if root.RunE == nil {
		root.Args = cobra.ArbitraryArgs // cobra's own error has several lines
	}
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" {
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				if len(rest) > 0 && !found.HasAvailableSubCommands() {
					return Usagef("%q: unknown command below %s", rest[0], found.CommandPath())
				}
				return knows(found, rest)
			}
		}
	}
}

// called returns an error for a command line that would only print the help of cmd.
func called(cmd *cobra.Command) error {
	asked := cmd.Flags().Changed("help") || !cmd.Flags().Parsed() // requested by the help command
	if args := cmd.Flags().Args(); len(args) > 0 || asked || !cmd.HasParent() {
		return knows(cmd, args)
	}
	return Usagef("a command is missing: %s", strings.Join(below(cmd), ", "))
}

// knows returns an error if args after cmd begin with an unknown command.
func knows(cmd *cobra.Command, args []string) error {
	if wrong := replacedCommand(cmd, args); wrong != nil {
		return wrong
	}
	if len(args) == 0 || !cmd.HasAvailableSubCommands() {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		return Usagef("command %q not found: did you mean %s?", args[0], strings.Join(names, ", "))
	}
	return Usagef("command %q not found: must be one of %s", args[0], strings.Join(below(cmd), ", "))
}

func below(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}
