package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const configHelp = `Keep how to reach control planes in a file of contexts, so that it need not be said with each command:

  sondectl config set-context prod --address cp.example:5681 --ca-cert-file serving-ca.crt --token-file admin-token
  sondectl get proxies

A context has a name, the address of the admin API, and the paths of two files, never a token itself. The file is that of --config, else
sonde/sondectl.yaml in the user's directory for configuration (on Linux ~/.config). Only its owner may be able to write it. One that --config
names must exist, but for set-context, which makes it.

What counts, from first to last: a flag; its variable, such as SONDECTL_CA_CERT_FILE for --ca-cert-file; the context, that of --context or
the current one; the default.`

func (c *cli) config() *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Keep how to reach control planes, as contexts", Long: configHelp}
	cmd.AddCommand(c.setContext(), c.useContext(), c.deleteContext(), c.currentContext(), c.getContexts(), c.viewConfig())
	return cmd
}

// changeContexts is the action of a command that changes the file that read returns. The change returns what to tell.
func (c *cli) changeContexts(
	read func() (*contextFile, string, error), change func(f *contextFile, path, name string) (string, error),
) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		f, path, err := read()
		if err != nil {
			return err
		}
		told, err := change(f, path, args[0])
		if err != nil {
			return err
		}
		if err := f.write(path); err != nil {
			return err
		}
		fmt.Fprintln(&c.out, told)
		return nil
	}
}

func (c *cli) setContext() *cobra.Command {
	return &cobra.Command{
		Use:   "set-context NAME",
		Short: "Make a context, or change one",
		Long: `Make a context, or change one: it gets the values of --address, --ca-cert-file and --token-file, or of their variables, and keeps
what it has of those that are not given. The first context becomes the current one.`,
		Example:           "  sondectl config set-context prod --address cp.example:5681 --ca-cert-file serving-ca.crt --token-file admin-token",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContexts,
		RunE: c.changeContexts(c.contextsToChange, func(f *contextFile, _, name string) (string, error) {
			if name == "" || printer.OneLine(name) != name {
				return "", &mesh.FieldError{Field: "NAME", Value: name, Allowed: "must be a name without control characters"}
			}
			if !c.given(flagAddress) && !c.given(flagCACert) && !c.given(flagTokenFile) {
				return "", settings.Usagef("nothing to set: give --%s, --%s or --%s", flagAddress, flagCACert, flagTokenFile)
			}
			if _, err := c.inCluster(); err != nil { // a context has an address
				return "", err
			}
			done := "changed"
			if f.find(name) == nil {
				done = "made"
				f.Contexts = append(f.Contexts, contextItem{Name: name})
			}
			if len(f.Contexts) == 1 && f.CurrentContext == "" {
				f.CurrentContext, done = name, done+", and current"
			}
			return fmt.Sprintf("context %q %s", name, done), c.fill(f.find(name))
		}),
	}
}

// fill gives a context the values of flags. Their paths are those of the directory in which the command runs.
func (c *cli) fill(item *contextItem) error {
	var errs []error
	if c.given(flagAddress) {
		item.Address = c.address
	}
	for _, file := range []struct {
		flag, value string
		to          *string
	}{{flagCACert, c.caFile, &item.CACertFile}, {flagTokenFile, c.tokenFile, &item.TokenFile}} {
		if !c.given(file.flag) {
			continue
		}
		path, err := filepath.Abs(file.value)
		if file.value == "" {
			path = ""
		}
		*file.to = path
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *cli) useContext() *cobra.Command {
	return &cobra.Command{
		Use:               "use-context NAME",
		Short:             "Make a context the current one",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContexts,
		RunE: c.changeContexts(c.contexts, func(f *contextFile, path, name string) (string, error) {
			if f.find(name) == nil {
				return "", f.notFound("NAME", path, name)
			}
			f.CurrentContext = name
			return fmt.Sprintf("context %q is the current one", name), nil
		}),
	}
}

func (c *cli) deleteContext() *cobra.Command {
	return &cobra.Command{
		Use:               "delete-context NAME",
		Short:             "Remove a context; the files that it names stay",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: c.completeContexts,
		RunE: c.changeContexts(c.contexts, func(f *contextFile, path, name string) (string, error) {
			if f.find(name) == nil {
				return "", f.notFound("NAME", path, name)
			}
			f.Contexts = slices.DeleteFunc(f.Contexts, func(item contextItem) bool { return item.Name == name })
			if f.CurrentContext != name {
				return fmt.Sprintf("context %q deleted", name), nil
			}
			f.CurrentContext = ""
			return fmt.Sprintf("context %q deleted, and none is the current one now: see sondectl config use-context", name), nil
		}),
	}
}

func (c *cli) currentContext() *cobra.Command {
	return &cobra.Command{
		Use:   "current-context",
		Short: "Show the name of the current context",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, path, err := c.contexts()
			switch {
			case err != nil:
				return err
			case f.CurrentContext == "":
				return fmt.Errorf("%s: no context is the current one: see sondectl config use-context", path)
			}
			fmt.Fprintln(&c.out, f.CurrentContext)
			return nil
		},
	}
}

func (c *cli) getContexts() *cobra.Command {
	cmd := &cobra.Command{Use: "get-contexts", Short: "Show all contexts", Args: cobra.NoArgs}
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.RunE = func(*cobra.Command, []string) error {
		f, _, err := c.contexts()
		if err != nil {
			return err
		}
		l := &listing{header: []string{"CURRENT", "NAME", "ADDRESS", "CA-CERT-FILE", "TOKEN-FILE"}}
		for _, item := range f.Contexts {
			current := ""
			if item.Name == f.CurrentContext {
				current = "*"
			}
			l.documents = append(l.documents, item)
			l.rows = append(l.rows, printer.Row{Cells: []string{current, item.Name, item.Address, item.CACertFile, item.TokenFile}})
		}
		return l.write(&c.out, output.Value)
	}
	return cmd
}

func (c *cli) viewConfig() *cobra.Command {
	cmd := &cobra.Command{Use: "view", Short: "Show the file of contexts, as it is read", Args: cobra.NoArgs}
	output := printer.AddFormat(cmd, printer.YAML, printer.JSON)
	cmd.RunE = func(*cobra.Command, []string) error {
		f, _, err := c.contexts()
		switch {
		case err != nil:
			return err
		case output.Value == printer.JSON:
			return printer.WriteJSON(&c.out, f)
		}
		return printer.WriteYAML(&c.out, f)
	}
	return cmd
}

// completeContexts completes names of contexts.
func (c *cli) completeContexts(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	f, _, err := c.contexts()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return f.names(), cobra.ShellCompDirectiveNoFileComp
}
