package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompleteWords(t *testing.T) {
	for name, tc := range map[string]struct{ args, want string }{
		"level":   {"--log-level", "debug info warn error"},
		"format":  {"--log-format", "text json"},
		"mode":    {"--virtual-probes-mode", "unified per-port"},
		"guarded": {"--guarded-liveness-mode", "enforce dryRun off"},
		"freeze":  {"--freeze-mode", "enforce dryRun off"},
		"form":    {"--sidecar-form", "native container"},
		"store":   {"--store", "dir: kubernetes"},
		"version": {"version -o", "text json"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newCommand(&options{})
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
