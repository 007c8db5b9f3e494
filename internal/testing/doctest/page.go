// Package doctest lets tests compare the docs with the programs: the generated pages of docs/reference, and the command
// lines in all pages.
package doctest

import (
	"fmt"
	"os"
	"slices"
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
	o       Options
	text    strings.Builder
	earlier []described
}

func (p *page) print(format string, args ...any) {
	_, _ = fmt.Fprintf(&p.text, format, args...) // never fails
}

// command writes a command and its subcommands.
func (p *page) command(cmd *cobra.Command) {
	flags := flagsOf(cmd)
	if len(flags) > 0 || !cmd.HasSubCommands() {
		p.print("\n## %s\n", cmd.CommandPath())
		if cmd.HasParent() {
			p.print("\n%s.\n", cmd.Short)
		}
		if cmd.UseLine() != cmd.CommandPath()+" [flags]" {
			p.print("\n```\n%s\n```\n", cmd.UseLine())
		}
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

// minShared is how many flags a command must share with an earlier one for the page to list them by name alone.
const minShared = 4

// flags writes the command's flags, in a table without empty columns. It describes flags of an earlier command once.
func (p *page) flags(cmd *cobra.Command, flags []*pflag.Flag) {
	rows := make([][]string, 0, len(flags))
	for _, f := range flags {
		value, usage := pflag.UnquoteUsage(f)
		name := flagName(f)
		if value != "" {
			name += " " + value
		}
		rows = append(rows, []string{
			code(name), code(p.o.Variable(cmd, f)), code(p.o.Key(cmd, f)), code(defaultOf(f)), cell(usage),
		})
	}
	i := slices.IndexFunc(p.earlier, func(e described) bool { return e.count(rows) >= minShared })
	p.earlier = append(p.earlier, described{cmd.CommandPath(), rows})
	if i < 0 {
		p.table(rows)
		return
	}
	earlier := p.earlier[i]
	var names []string
	for j, f := range flags {
		if earlier.has(rows[j]) {
			names = append(names, code(flagName(f)))
		}
	}
	anchor := strings.ReplaceAll(earlier.command, " ", "-")
	p.print("\n%s: as in [%s](#%s).\n", strings.Join(names, ", "), earlier.command, anchor)
	p.table(slices.DeleteFunc(rows, earlier.has))
}

// described is a command that is already on the page, and its rows of flags.
type described struct {
	command string
	rows    [][]string
}

func (d described) has(row []string) bool {
	return slices.ContainsFunc(d.rows, func(r []string) bool { return slices.Equal(r, row) })
}

// count returns how many of the rows the command has.
func (d described) count(rows [][]string) (n int) {
	for _, row := range rows {
		if d.has(row) {
			n++
		}
	}
	return n
}

// table writes rows of flags, without the columns that are empty in all of them.
func (p *page) table(rows [][]string) {
	if len(rows) == 0 {
		return
	}
	header := []string{"flag", "variable", "key", "default", "meaning"}
	filled := func(row []string) (cells []string) {
		for i, text := range row {
			if slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "" }) {
				cells = append(cells, text)
			}
		}
		return cells
	}
	p.print("\n| %s |\n|%s\n", strings.Join(filled(header), " | "), strings.Repeat("---|", len(filled(header))))
	for _, row := range rows {
		p.print("| %s |\n", strings.Join(filled(row), " | "))
	}
}

// flagName returns a flag with its shorthand, as in -o, --output.
func flagName(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "-" + f.Shorthand + ", --" + f.Name
	}
	return "--" + f.Name
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
