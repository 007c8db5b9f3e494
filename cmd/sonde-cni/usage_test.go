package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings"
)

func TestExitCodes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	tests := map[string]struct {
		args, stderr string
		code         int
	}{
		"help":            {args: "help version"},
		"no node":         {"", "sonde-cni: --node: must not be empty", 2},
		"unknown flag":    {"--nod=a", "sonde-cni: --nod: is an unknown flag", 2},
		"a relative path": {"--node=a --socket=d.sock", `sonde-cni: --socket: "d.sock": must be an absolute path`, 2},
		"no such cluster": {"--node=a --kubeconfig=" + nowhere, "sonde-cni: --kubeconfig: ", 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr, stdout bytes.Buffer
			cmd := newCommand(&options{})
			cmd.SetArgs(strings.Fields(tc.args))
			cmd.SetErr(&stderr)
			cmd.SetOut(&stdout)
			if code := settings.Main(t.Context(), cmd); code != tc.code || !strings.HasPrefix(stderr.String(), tc.stderr) {
				t.Errorf("exit code = %d, stderr %q, want %d, %q", code, &stderr, tc.code, tc.stderr)
			}
		})
	}
}
