package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestExitCodes(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	n := virtual.NewNetwork()
	if _, err := n.Listen(t.Context(), "tcp", "127.0.0.1:80"); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		args, stderr string
		code         int
	}{
		"help":                                 {args: "help version"},
		"help of an unknown command":           {"help nosuch", `sonde-cp: command "nosuch" not found: must be one of apply-crds, completion, version`, 2},
		"completion of an unknown shell":       {"completion tcsh", `sonde-cp: command "tcsh" not found: did you mean bash, zsh, fish?`, 2},
		"unknown command":                      {"start", `sonde-cp: unknown command "start"`, 2},
		"unknown command, --help":              {"start --help", `sonde-cp: command "start" not found`, 2},
		"Kuma's command":                       {"run", `sonde-cp: command "run" not found: leave it out: sonde-cp without a command runs the control plane`, 2},
		"before its flags":                     {"run -c x --store=dir:x", `sonde-cp: command "run" not found: leave it out`, 2},
		"a command with a subcommand":          {"migrate up", `sonde-cp: command "migrate" not found: leave it out: Sonde has no database`, 2},
		"Kuma's flag":                          {"--config-file=x", "sonde-cp: --config-file: is an unknown flag: write --config\n", 2},
		"Kuma's short flag":                    {"-c x", "sonde-cp: -c: is an unknown flag: write --config\n", 2},
		"unknown flag":                         {"--stroe=dir:x", "sonde-cp: --stroe: is an unknown flag: did you mean --store?", 2},
		"a missing flag":                       {"", "sonde-cp: --store: must be dir:PATH or kubernetes", 2},
		"an invalid value":                     {"--agents-port=x", `sonde-cp: --agents-port: "x": must be a port`, 2},
		"an invalid trust domain":              {"--store=dir:x --trust-domain=_", `sonde-cp: --trust-domain: "_": must be`, 2},
		"two flags that exclude each other":    {"--store=dir:x --health-addr=*:1 --health-port=1", `sonde-cp: --health-addr: "*:1": must not be given with --health-port`, 2},
		"output of version":                    {"version -o xml", `sonde-cp: --output: "xml": must be text or json`, 2},
		"a missing --config file":              {"--config=" + nowhere, "sonde-cp: read --config: open ", 2},
		"apply-crds to an unknown cluster":     {"apply-crds --kubeconfig=" + nowhere, "sonde-cp: --kubeconfig: ", 1},
		"no such cluster":                      {"--store=kubernetes --kubeconfig=" + nowhere, "sonde-cp: --kubeconfig: ", 1},
		"a foreign directory":                  {"--store=dir:x --state-dir=/proc", `sonde-cp: --state-dir: "/proc": state directory /proc: other users may enter it (mode 0555): must be a dedicated directory`, 1},
		"bind to an address of another host":   {"--store=dir:x --bind-address=9.9.9.9 --state-dir=" + filepath.Join(t.TempDir(), "state"), `sonde-cp: --bind-address: "9.9.9.9": must be an IP address of this machine, or * for all: listen tcp 9.9.9.9:5678: `, 1},
		"health at an address of another host": {"--store=dir:x --bind-address=127.0.0.1 --health-addr=9.9.9.9:81 --state-dir=" + filepath.Join(t.TempDir(), "state"), `sonde-cp: --health-addr: "9.9.9.9:81": must have an IP address of this machine, or * for all: listen`, 1},
		"a port in use":                        {"--store=dir:x --bind-address=127.0.0.1 --agents-port=80 --state-dir=" + filepath.Join(t.TempDir(), "state"), `sonde-cp: --agents-port: "80": listen tcp 127.0.0.1:80: bind: address already in use`, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr, stdout bytes.Buffer
			cmd := newCommand(&options{Options: controlplane.Options{Listen: n.Without("9.9.9.9")}})
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
