package doctest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

func TestCommandLinesOf(t *testing.T) {
	tests := map[string]struct {
		script string
		want   [][]string
	}{
		"prompt and path":        {"$ bin/prog get x\nNAME\nprog is a program: isn't it", [][]string{{"get", "x"}, {"is", "a", "program:", "isnt it"}}},
		"continued":              {"prog get \\\n  --flag=1", [][]string{{"get", "--flag=1"}}},
		"pipes and conditions":   {"if ! prog a | grep b; then prog c; fi && prog d || prog e &", [][]string{{"a"}, {"c"}, {"d"}, {"e"}}},
		"redirections":           {"prog a 2>a.log >>b <c 2>&1 &\nprog b <<'END' >x", [][]string{{"a"}, {"b"}}},
		"quotes":                 {`prog a --b="$PWD/c d" 'e|f' g\ h`, [][]string{{"a", "--b=$PWD/c d", "e|f", "g h"}}},
		"comment":                {"# prog a\nprog b # prog c; prog d\nprog e#f", [][]string{{"b"}, {"e#f"}}},
		"variables":              {"A=b C= prog a", [][]string{{"a"}}},
		"in another command":     {"ExecStart=/bin/sh -c 'prog a >b && prog c'\nx=$(prog d)", [][]string{{"a"}, {"c"}, {"d"}}},
		"argument of another":    {"kubectl -n x logs svc/prog 5681\nkubectl logs prog", nil},
		"another program":        {"prog-x a\nmyprog b", nil},
		"name alone, and drawn":  {"prog\nprog ──► x", nil},
		"nothing":                {"", nil},
		"what a shell refuses":   {"'\n\"\n\\", nil},
		"an apostrophe in a row": {"it's\nprog a", [][]string{{"a"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, commandLines(tc.script, "prog")); diff != "" {
				t.Errorf("commandLines() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParse(t *testing.T) {
	program := func() *cobra.Command {
		root := &cobra.Command{Use: "prog"}
		get := &cobra.Command{Use: "get NAME", Args: cobra.ExactArgs(1), Run: func(*cobra.Command, []string) {}}
		get.Flags().Int("count", 0, "")
		root.AddCommand(get)
		return root
	}
	tests := map[string]struct{ args, want, wantMention string }{
		"right":           {"get x --count=1", "", ""},
		"unknown command": {"got x", "unknown command", "unknown command"},
		"unknown flag":    {"get x --cuont=1", "unknown flag", "unknown flag"},
		"bad value":       {"get x --count=many", "invalid argument", "invalid argument"},
		"no value":        {"get x --count", "needs an argument", ""},
		"no argument":     {"get", "accepts 1 arg", ""},
		"too many":        {"get x y", "accepts 1 arg", "accepts 1 arg"},
		"help":            {"get --help", "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for mention, want := range map[bool]string{false: tc.want, true: tc.wantMention} {
				err := parse(program(), strings.Fields(tc.args), mention)
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("parse(%v) = %v, want %q", mention, err, want)
				}
			}
		})
	}
}
