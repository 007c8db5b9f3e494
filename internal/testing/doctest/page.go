// Package doctest lets tests compare the docs with the programs: the generated pages of docs/reference, and the command
// lines in all pages.
package doctest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Golden fails the test if a file differs from want. If update is set, it writes the file instead.
func Golden(t testing.TB, update bool, file, want string) {
	t.Helper()
	if update {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s differs from its source, make golden writes it (-want +got):\n%s", file, diff)
	}
}

// Options of Page.
type Options struct {
	// About is a paragraph about the program.
	About string
	// Variable returns the variable that sets a flag of a command, or "".
	Variable func(*cobra.Command, *pflag.Flag) string
	// Key returns the key of a flag of a command in the configuration file, or "".
	Key func(*cobra.Command, *pflag.Flag) string
}

// Page returns the page of a program, as Markdown.
func Page(root *cobra.Command, o Options) string {
	p := &page{o: o}
	p.print("# %s\n\n<!-- Written by make golden from the program's flags. -->\n\n%s. %s\n",
		root.Name(), root.Short, o.About)
	p.command(root)
	return p.text.String()
}

type page struct {
	o    Options
	text strings.Builder
}

func (p *page) print(format string, args ...any) {
	_, _ = fmt.Fprintf(&p.text, format, args...) // never fails
}

// command writes a command and its subcommands.
func (p *page) command(cmd *cobra.Command) {
	flags := flagsOf(cmd)
	if len(flags) > 0 || !cmd.HasSubCommands() {
		p.print("\n## %s\n\n", cmd.CommandPath())
		if cmd.HasParent() {
			p.print("%s.\n\n", cmd.Short)
		}
		p.print("```\n%s\n```\n", cmd.UseLine())
	}
	p.flags(cmd, flags)
	for _, below := range cmd.Commands() {
		if !below.Hidden {
			p.command(below)
		}
	}
}

// flagsOf returns the command's own flags.
func flagsOf(cmd *cobra.Command) []*pflag.Flag {
	var all []*pflag.Flag
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" && f.Name != "version" {
			all = append(all, f)
		}
	})
	return all
}

func (p *page) flags(cmd *cobra.Command, flags []*pflag.Flag) {
	if len(flags) > 0 {
		p.print("\n| flag | variable | key | default | meaning |\n|---|---|---|---|---|\n")
	}
	for _, f := range flags {
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		p.print("| `%s` | %s | %s | %s | %s |\n", cell(name), code(p.o.Variable(cmd, f)), code(p.o.Key(cmd, f)),
			code(defaultOf(f)), cell(usage))
	}
}

// defaultOf returns the default of a flag, or "" for a zero value.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "false", "[]", "0s", "0":
		return ""
	}
	return f.DefValue
}

func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + cell(text) + "`"
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
