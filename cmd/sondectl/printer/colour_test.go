package printer

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/terminal"
)

func TestColourOf(t *testing.T) {
	tests := map[string]struct {
		column, cell string
		want         terminal.Colour
	}{
		"wrong":                      {"AGENT", "lost", terminal.Red},
		"fine":                       {"AGENT", "connected", terminal.Plain},
		"a name is no state":         {"NAME", "lost", terminal.Plain},
		"no header":                  {"", "lost", terminal.Plain},
		"none of two":                {"ENDPOINTS", "0/2", terminal.Red},
		"one of two":                 {"ENDPOINTS", "1/2(1-unchecked)", terminal.Yellow},
		"all":                        {"ENDPOINTS", "2/2(2-unchecked)", terminal.Plain},
		"no endpoints":               {"ENDPOINTS", "0/0", terminal.Yellow},
		"the worst port":             {"ENDPOINTS", "2/2,0/2,1/2", terminal.Red},
		"the second port":            {"ENDPOINTS", "2/2,1/2", terminal.Yellow},
		"an inbound":                 {"HEALTH", "1/2-ready", terminal.Yellow},
		"ready":                      {"HEALTH", "ready", terminal.Plain},
		"not ready":                  {"HEALTH", "not-ready", terminal.Red},
		"a dry run":                  {"OUTCOME", "unhelpful(dry-run)", terminal.Red},
		"a zone that is not reached": {"VERDICT", "lost", terminal.Red},
		"nothing":                    {"SYNCED", "-", terminal.Plain},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := colourOf(tc.column, tc.cell); got != tc.want {
				t.Errorf("colourOf(%q, %q) = %d, want %d", tc.column, tc.cell, got, tc.want)
			}
		})
	}
}

// TestColoursMoveNothing compares a table with and without colours byte by byte, for a file and a terminal.
func TestColoursMoveNothing(t *testing.T) {
	var out Output
	WriteTable(&out, []string{"NAME", "STATE", "AGE"}, []Row{
		{Cells: []string{"a", "not-ready", "5m"}, Notes: []string{"refused: \x1b[31mlisteners: x", "why: y"}},
		{Cells: []string{"lost", "ready", "-"}},
		{Cells: []string{"b", "draining", ""}},
	})
	out.WriteString("raw \x1b[31m\n")
	const (
		plain  = "NAME   STATE       AGE\na      not-ready   5m\n  refused:  [31mlisteners: x\n  why: y\nlost   ready       -\nb      draining    -\n"
		bright = "NAME   STATE       AGE\na      \x1b[31mnot-ready\x1b[0m   5m\n  \x1b[31mrefused:\x1b[0m  [31mlisteners: x\n  why: y\n" +
			"lost   ready       -\nb      \x1b[33mdraining\x1b[0m    -\n"
	)
	tests := map[string]struct {
		terminal, colours bool
		want              string
	}{
		"a file":                        {false, false, plain + "raw \x1b[31m\n"},
		"a file with --color=always":    {false, true, bright + "raw \x1b[31m\n"},
		"a terminal":                    {true, true, bright + "raw \\u001b[31m\n"},
		"a terminal with --color=never": {true, false, plain + "raw \\u001b[31m\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			var err error
			if tc.terminal {
				err = out.Show(escaping{&got}, tc.colours)
			} else {
				err = out.Show(&got, tc.colours)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}
