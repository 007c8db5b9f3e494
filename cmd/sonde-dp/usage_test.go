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
		"help":                              {args: "help wait"},
		"help of an unknown command":        {"help nosuch", `sonde-dp: command "nosuch" not found: must be one of check, completion,`, 2},
		"completion of an unknown shell":    {"completion tcsh", `sonde-dp: command "tcsh" not found: did you mean bash, zsh, fish?`, 2},
		"unknown command":                   {"wiat", `sonde-dp: command "wiat" not found: did you mean wait?`, 2},
		"unknown command, --help":           {"wiat --help", `sonde-dp: command "wiat" not found: did you mean wait?`, 2},
		"a missing subcommand":              {"install", "sonde-dp: a command is missing: transparent-proxy", 2},
		"an unknown subcommand":             {"check dns", `sonde-dp: command "dns" not found: must be one of kubelet, transparent-proxy`, 2},
		"Kuma's flag":                       {"run --dataplane-file=x", "sonde-dp: --dataplane-file: is an unknown flag: write the Dataplane into a file of the control plane's --store", 2},
		"Kuma's short flag":                 {"run -d x", "sonde-dp: -d: is an unknown flag: write the Dataplane into a file", 2},
		"not the nearest flag":              {"run --config-dir=x", "sonde-dp: --config-dir: is an unknown flag: write --work-dir\n", 2},
		"a flag of Kuma's on every command": {"wait --log-output-path=x", "sonde-dp: --log-output-path: is an unknown flag: redirect stderr: the log goes there", 2},
		"Kuma's flag, elsewhere":            {"install transparent-proxy --redirect-dns", "sonde-dp: --redirect-dns: is an unknown flag: leave it out: Sonde answers no DNS", 2},
		"unknown flag":                      {"wait --tiemout=1s", "sonde-dp: --tiemout: is an unknown flag: did you mean --timeout?", 2},
		"an argument":                       {"run web-1", `sonde-dp: unknown command "web-1"`, 2},
		"missing flags":                     {"run", "sonde-dp: --cp-address: is required\n--ca-cert-file: is required\n", 2},
		"a missing switch":                  {"drain --work-dir=x", "sonde-dp: --begin: is required", 2},
		"a missing directory":               {"drain --begin", "sonde-dp: --work-dir: is required", 2},
		"an invalid value":                  {"run --drain-time=x", `sonde-dp: --drain-time: "x": must be a duration`, 2},
		"an invalid timeout":                {"wait --timeout=0s", `sonde-dp: --timeout: "0s": must be more than 0`, 2},
		"an invalid user":                   {"check transparent-proxy --kuma-dp-uid=0", `sonde-dp: --kuma-dp-uid: "0": must be`, 2},
		"output of version":                 {"version -o xml", `sonde-dp: --output: "xml": must be text or json`, 2},
		"a missing --config file":           {"run --config=" + nowhere, "sonde-dp: read --config: open ", 2},
		"a missing Envoy binary": {
			"run --cp-address=localhost:5678 --ca-cert-file=x --name=x --dataplane-token-file=x --envoy-path=" + nowhere, "sonde-dp: --envoy-path: ", 1,
		},
		"a missing work directory": {"drain --begin --work-dir=" + nowhere, "sonde-dp: --work-dir: ", 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr, stdout bytes.Buffer
			cmd := newCommand(noGuard)
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
