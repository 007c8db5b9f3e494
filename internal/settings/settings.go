// Package settings is the command line of all programs. Environment variables and a configuration file set flags, too; all values that do not
// parse are reported at once, with where each of them stands; and wrong usage has an exit code of its own.
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

// flagConfig is the flag that names the file, where a program has one.
const flagConfig = "config"

// Options of Install.
type Options struct {
	// Prefix of the variables, such as SONDE_CP_: --state-dir is then SONDE_CP_STATE_DIR. Required.
	Prefix string
	// Variables returns the flags of a command that variables set. Default all.
	Variables func(*cobra.Command) *pflag.FlagSet
	// File says that the flag --config of a command is the name of a file with its flags as keys.
	File bool
	// Keys has the keys of flags that are not at the top of the file. Default none.
	Keys Keys
	// Replaced says what to write instead of commands and flags that users of another product try, by the command below the program and the
	// flag, such as "apply", "run --dataplane-file", "run -d", or "--config-file" for any command. Default none.
	Replaced map[string]string
	// Unknown is told of variables with the prefix that are none of the program's, each with the one that may be meant. Required.
	Unknown func(cmd *cobra.Command, variables []string)
}

// settings is where the values of a program's flags come from.
type settings struct {
	o     Options
	errs  []error
	known map[string]bool // the variables
	names Places          // where the values of flags stand that are not on the command line
}

// Install makes a program, to which all commands and flags have been added, read its settings before it runs a command. A flag takes
// precedence over its variable, and that over the file. A FieldError of a command that names a flag, with its two dashes, then names the
// place of its value if that is not the command line, and is a UsageError unless it has a cause.
func Install(root *cobra.Command, o Options) {
	if o.Variables == nil {
		o.Variables = (*cobra.Command).Flags
	}
	s := &settings{o: o, known: map[string]bool{}, names: Places{}}
	addReplaced(root, o.Replaced)
	s.add(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if wrong := misnamed(cmd, cmd.Flags().Args()); wrong != nil { // no flag of a command that does not exist is known
			return errors.Join(append(s.errs, wrong)...)
		}
		if missing, ok := errors.AsType[*pflag.NotExistError](err); ok {
			err = unknownFlag(cmd, missing, err)
		}
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok { // of a flag of cobra's
			f := invalid.GetFlag()
			err = fieldError("--"+f.Name, f.Value, invalid.GetValue(), invalid.Unwrap())
		}
		return errors.Join(append(s.errs, err)...)
	})
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		s.readVariables(o.Variables(cmd))
		if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
			return nil // a shell asks for completions: mistakes are no answer
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

// missing returns an error for each required flag that nothing has set, not even under a misspelt key.
func (s *settings) missing(flags *pflag.FlagSet) []error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if _, written := s.names["--"+f.Name]; f.Annotations[cobra.BashCompOneRequiredFlag] != nil && !f.Changed && !written {
			errs = append(errs, &mesh.FieldError{Field: "--" + f.Name, Allowed: "is required"})
		}
	})
	return errs
}

// unknownFlag says what replaces a flag, or which of the known ones may be meant. err is what is wrong with any other short flag.
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

// add has the values of all flags of a command, and of those below it, checked later.
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

// Variable returns the variable of a flag.
func Variable(prefix string, f *pflag.Flag) string {
	return prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

func (s *settings) variable(f *pflag.Flag) string { return Variable(s.o.Prefix, f) }

// readVariables sets the flags that the command line has not set. An empty variable counts, as an empty flag does.
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
