package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/watchdog"
)

// kubeconfig names an API server that does not exist: the program checks its flags before it connects.
const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	n := virtual.NewNetwork()
	if _, err := n.Listen(t.Context(), "tcp", "127.0.0.1:80"); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	to := " --kubeconfig=" + write(t, "kubeconfig", kubeconfig)
	itself := write(t, "itself.yaml", "kubeConfigSecretName: a\ndependentResourceInfos:\n- ref: {apiVersion: apps/v1, kind: Deployment, name: dog}\n  scaleUp: {level: 0}\n  scaleDown: {level: 0}\n")
	tests := map[string]struct {
		args, stderr string
		code         int
	}{
		"help":                          {args: "help version"},
		"unknown command":               {"start", `sonde-watchdog: unknown command "start"`, 2},
		"unknown flag":                  {"--dry-rum", "sonde-watchdog: --dry-rum: is an unknown flag: did you mean --dry-run?", 2},
		"an invalid value":              {"--dry-run=perhaps", `sonde-watchdog: --dry-run: "perhaps": must be true or false`, 2},
		"namespace":                     {"--namespace=A_b", `sonde-watchdog: --namespace: "A_b": must be the name of an object`, 2},
		"no replica":                    {"--replica=", "sonde-watchdog: --replica: must be the name of an object", 2},
		"health address":                {"--health-addr=localhost:1", `sonde-watchdog: --health-addr: "localhost:1": must be HOST:PORT`, 2},
		"local cluster without a file":  {"--config-local", `sonde-watchdog: --config-local: "true": must be given with a file`, 2},
		"shoots without a file":         {"--gardener", `sonde-watchdog: --gardener: "true": must be given with a file`, 2},
		"local shoots":                  {"--gardener --config-local --config=" + itself, `sonde-watchdog: --config-local: "true": must not be given for shoots`, 2},
		"an empty file name":            {"--config=", "sonde-watchdog: --config: must not be empty", 2},
		"no such file":                  {"--config=" + nowhere, "sonde-watchdog: --config: ", 1},
		"a file with an error":          {"--config=" + write(t, "dwd.yaml", "probeIntervall: 1s\n"), "sonde-watchdog: --config: ", 1},
		"the watchdog itself":           {"--name=dog --config=" + itself, "sonde-watchdog: --config: ", 1},
		"no such cluster":               {"--kubeconfig=" + nowhere, "sonde-watchdog: --kubeconfig: ", 1},
		"an address of another machine": {"--health-addr=9.9.9.9:81" + to, `sonde-watchdog: --health-addr: "9.9.9.9:81": must have an IP address of this machine, or * for all: listen tcp 9.9.9.9:81`, 1},
		"a port in use":                 {"--health-addr=127.0.0.1:80" + to, `sonde-watchdog: --health-addr: "127.0.0.1:80": listen tcp 127.0.0.1:80: bind: address already in use`, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stderr, stdout bytes.Buffer
			cmd := newCommand(&options{Options: watchdog.Options{Listen: n.Without("9.9.9.9")}})
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
