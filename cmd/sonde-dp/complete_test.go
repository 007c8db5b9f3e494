package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompleteWords(t *testing.T) {
	for name, tc := range map[string]struct{ args, want string }{
		"level":           {"run --log-level", "debug info warn error"},
		"format":          {"run --log-format", "text json"},
		"level of probes": {"probes --log-level", "debug info warn error"},
		"mode":            {"run --virtual-probes-mode", "unified per-port"},
		"families":        {"install transparent-proxy --ip-family-mode", "dualstack ipv4 ipv6"},
		"version":         {"version -o", "text json"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newCommand(noGuard)
			cmd.SetOut(&out)
			cmd.SetErr(&bytes.Buffer{})
			cmd.SetArgs(append([]string{"__complete"}, append(strings.Fields(tc.args), "")...))
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			words, _, _ := strings.Cut(out.String(), "\n:")
			if diff := cmp.Diff(tc.want, strings.ReplaceAll(words, "\n", " ")); diff != "" {
				t.Errorf("completions (-want +got):\n%s", diff)
			}
		})
	}
}
