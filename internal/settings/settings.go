// Package settings handles the command line of all programs. Environment variables and a configuration file also set
// flags. All invalid values are reported at once, with the place of each, and wrong usage has its own exit code.
package settings

import (
	"errors"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// flagConfig names the configuration file, if a program has one.
const flagConfig = "config"

// Options of Install.
type Options struct {
	// Prefix of the variables, such as SONDE_CP_: --state-dir is then SONDE_CP_STATE_DIR. Required.
	Prefix string
	// Variables returns the flags of a command that environment variables set. Default: all.
	Variables func(*cobra.Command) *pflag.FlagSet
	// File means that the flag --config of a command names a file that has flags as keys.
	File bool
	// Keys has the keys of flags that are not at the top of the file. Default: none.
	Keys Keys
	// Replaced maps commands and flags of another product to what to use instead. Its keys are the command below the
	// program and the flag, such as "apply", "run --dataplane-file", "run -d", or "--config-file" for any command.
	// Default: none.
	Replaced map[string]string
	// Unknown is called with the unknown variables that have the prefix, each with a suggestion if possible. Required.
	Unknown func(cmd *cobra.Command, variables []string)
}

// settings records the sources of a program's flag values.
type settings struct {
	o     Options
	errs  []error
	known map[string]bool // known variables
	names Places          // places of values from outside the command line
}

// Install makes a program, to which all commands and flags have been added, read its settings before it runs a command.
// A flag takes precedence over its variable, which takes precedence over the file. If a FieldError of a command names a
// flag, with its two dashes, and the value is from a variable or the file, the error then names that place. It becomes
// a UsageError unless it has a cause.
func Install(root *cobra.Command, o Options) {
	if o.Variables == nil {
		o.Variables = (*cobra.Command).Flags
	}
	s := &settings{o: o, known: map[string]bool{}, names: Places{}}
	addReplaced(root, o.Replaced)
	s.add(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if wrong := misnamed(cmd, cmd.Flags().Args()); wrong != nil { // an unknown command has no flags
			return errors.Join(append(s.errs, wrong)...)
		}
		if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
			err = unknownFlag(cmd, missing, err)
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok { // the value of one of cobra's own flags
			f := invalid.GetFlag()
			err = fieldError("--"+f.Name, f.Value, invalid.GetValue(), invalid.Unwrap())
		}
		return errors.Join(append(s.errs, err)...)
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		s.readVariables(o.Variables(cmd))
		if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
			return nil // a shell requests completions: errors would not help
		}
		if f := cmd.Flags().Lookup(flagConfig); o.File && f != nil && f.Value.String() != "" {
			names, err := ReadFile(f.Value.String(), cmd.Flags(), o.Keys)
			maps.Copy(s.names, names)
			s.errs = append(s.errs, err)
		}
		if unknown := s.unknown(); unknown != nil {
			o.Unknown(cmd, unknown)
		}
		return errors.Join(append(s.errs, s.missing(cmd.Flags())...)...)
	}
}

// missing returns an error for each required flag that is not set, not even under a misspelt key.
func (s *settings) missing(flags *pflag.FlagSet) []error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if _, written := s.names["--"+f.Name]; f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed && !written {
			errs = append(errs, &mesh.FieldError{Field: "--" + f.Name, Allowed: "is required"})
		}
	})
	return errs
}

// unknownFlag returns an error with the replacement of a flag, or with a suggestion. err is the error for other short
// flags.
func unknownFlag(cmd *cobra.Command, missing *pflag.NotExistError, err error) error {
	const is = "is an unknown flag"
	name, dashes := missing.GetSpecifiedName(), "--"
	if missing.GetSpecifiedShortnames() != "" {
		dashes = "-"
	}
	if instead := replacedFlag(cmd, dashes+name); instead != "" {
		return &mesh.FieldError{Field: dashes + name, Allowed: is + ": " + instead}
	}
	if dashes == "-" {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	allowed := is
	if near, _ := mesh.Nearest(name, names); near != "" {
		allowed += ": did you mean --" + near + "?"
	}
	return &mesh.FieldError{Field: dashes + name, Allowed: allowed}
}

// add defers value checks for all flags of a command and its subcommands.
func (s *settings) add(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		flags.VisitAll(func(f *pflag.Flag) {
			if !isLate(f.Value) {
				f.Value = late(f, &s.errs)
			}
		})
	}
	if args := cmd.Args; cmd.RunE != nil && args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if wrong := replacedCommand(cmd, given); wrong != nil {
				return wrong
			}
			return args(cmd, given)
		}
	}
	s.o.Variables(cmd).VisitAll(func(f *pflag.Flag) { s.known[s.variable(f)] = true })
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if refusesFlag(err) {
				return &UsageError{s.names.Rename(err)}
			}
			return s.names.Rename(err)
		}
	}
	for _, sub := range cmd.Commands() {
		s.add(sub)
	}
}

// Variable returns the environment variable of a flag.
func Variable(prefix string, f *pflag.Flag) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

func (s *settings) variable(f *pflag.Flag) string { return Variable(s.o.Prefix, f) }

// readVariables sets the flags that the command line has not set. An empty variable sets an empty value.
func (s *settings) readVariables(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		variable := s.variable(f)
		text, set := os.LookupEnv(variable)
		if !set || f.Changed || !s.known[variable] || ofKubernetes(variable, text) {
			return
		}
		s.names["--"+f.Name] = Place{Name: variable}
		f.Changed = true
		if err := original(f.Value).Set(text); err != nil {
			s.errs = append(s.errs, fieldError(variable, f.Value, text, err))
		}
	})
}
