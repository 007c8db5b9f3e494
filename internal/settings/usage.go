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
	// ExitUsage is also that of a Go program that panics: nothing may conclude from it that a start in vain is not worth another one.
	ExitUsage = 2
)

// UsageError is a mistake in a command line, or in a variable or configuration file that stands for a part of it.
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

// Main runs a program as Execute does, writes on its stderr what is wrong, and returns its exit code.
func Main(ctx context.Context, root *cobra.Command) int {
	_, err := Execute(ctx, root)
	if err != nil {
		root.PrintErrln(root.Name()+":", err)
	}
	return ExitCode(err)
}

// Execute runs a program to which Install was applied, once, and returns the command that was called. An error from before that command began
// is a UsageError.
func Execute(ctx context.Context, root *cobra.Command) (*cobra.Command, error) {
	refuseUnknown(root)
	began := false
	onRun(root, func() { began = true })
	var wrong error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) { // also called for a command that only has commands below it
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

// refusesFlag reports whether err says that the value of a flag is not allowed, and not only that it could not be used, as a port that is taken.
func refusesFlag(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), refusesFlag)
	}
	field, ok := errors.AsType[*mesh.FieldError](err)
	return ok && field.Err == nil && strings.HasPrefix(field.Field, "--")
}

// refuseUnknown has Execute, and the command help, refuse commands that there are not. By itself cobra prints the help, and succeeds.
func refuseUnknown(root *cobra.Command) {
	if root.RunE == nil {
		root.Args = cobra.ArbitraryArgs // cobra's own refusal has several lines
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
					return Usagef("%q: there is no command below %s", rest[0], found.CommandPath())
				}
				return knows(found, rest)
			}
		}
	}
}

// called returns what is wrong with the command line if all that is left to do is to print the help of cmd.
func called(cmd *cobra.Command) error {
	asked := cmd.Flags().Changed("help") || !cmd.Flags().Parsed() // by the command help
	if args := cmd.Flags().Args(); len(args) > 0 || asked || !cmd.HasParent() {
		return knows(cmd, args)
	}
	return Usagef("a command is missing: %s", strings.Join(below(cmd), ", "))
}

// knows returns an error if args, which stand behind cmd, begin with the name of a command that it has not.
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
