package main

import (
	"bytes"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings"
)

func TestExitCodes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nobody connects
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args, stderr string
		code         int
	}{
		"help":                       {args: "help version"},
		"help of an unknown command": {"help nosuch", `sonde-cp: command "nosuch" not found: did you mean apply-crds, completion, version?`, 2},
		"completion of no shell":     {"completion tcsh", `sonde-cp: command "tcsh" not found: did you mean bash, zsh, fish?`, 2},
		"unknown command":            {"start", `sonde-cp: unknown command "start"`, 2},
		"unknown command, --help":    {"start --help", `sonde-cp: command "start" not found`, 2},
		"unknown flag":               {"--stroe=dir:x", "sonde-cp: --stroe: is an unknown flag: did you mean --store?", 2},
		"a missing flag":             {"", "sonde-cp: --store: must be dir:PATH or kubernetes", 2},
		"a value that is none":       {"--agents-port=x", `sonde-cp: --agents-port: "x": must be a port`, 2},
		"a value that is not":        {"--store=dir:x --trust-domain=_", `sonde-cp: --trust-domain: "_": must be`, 2},
		"two that exclude others":    {"--store=dir:x --health-addr=*:1 --health-port=1", `sonde-cp: --health-addr: "*:1": must not be given with --health-port`, 2},
		"of the version":             {"version -o xml", `sonde-cp: --output: "xml": must be text or json`, 2},
		"a file of flags":            {"--config=" + nowhere, "sonde-cp: read --config: open ", 2},
		"definitions of no cluster":  {"apply-crds --kubeconfig=" + nowhere, "sonde-cp: --kubeconfig: ", 1},
		"no such cluster":            {"--store=kubernetes --kubeconfig=" + nowhere, "sonde-cp: --kubeconfig: ", 1},
		"a port in use":              {"--store=dir:x --bind-address=127.0.0.1 --agents-port=" + port + " --state-dir=" + filepath.Join(t.TempDir(), "state"), "sonde-cp: --agents-port: ", 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr, stdout bytes.Buffer
			cmd := newCommand()
			cmd.SetArgs(strings.Fields(tc.args))
			cmd.SetErr(&stderr)
			cmd.SetOut(&stdout)
			if code := settings.Main(t.Context(), cmd); code != tc.code || !strings.HasPrefix(stderr.String(), tc.stderr) {
				t.Errorf("exit code = %d, stderr %q, want %d, %q", code, &stderr, tc.code, tc.stderr)
			}
			if tc.code != 0 && stdout.Len() > 0 {
				t.Errorf("stdout = %q, want nothing", &stdout)
			}
		})
	}
}
