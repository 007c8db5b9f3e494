package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// A persistent flag is not redefined by a command.
func TestNoCommandHidesAFlagOfAll(t *testing.T) {
	root := (&cli{}).root()
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if root.PersistentFlags().Lookup(f.Name) != nil {
				t.Errorf("%s has its own --%s", cmd.CommandPath(), f.Name)
			}
		})
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(root)
}

// All commands read the kubeconfig in the same way.
func TestKubeconfigOfEachCommand(t *testing.T) {
	kubeconfig := "--kubeconfig=" + kubeconfigOf(t, "http://127.0.0.1:1")
	tests := map[string]struct {
		args []string
		code int
		text string
	}{
		"drain of a dataplane":       {[]string{"drain", "dataplane/web", kubeconfig}, exit.Unreachable, "find control plane: no response from the API server at http://127.0.0.1:1"},
		"drain of a node":            {[]string{"drain", "node/worker", kubeconfig}, exit.Failed, `read node "worker": Get "http://127.0.0.1:1/`},
		"watchdog":                   {[]string{"watchdog", "status", kubeconfig}, exit.Failed, `Get "http://127.0.0.1:1/apis/sonde.dev/`},
		"wrong context of watchdog":  {[]string{"watchdog", "status", kubeconfig, "--context=prod"}, exit.Usage, `--context: "prod": must be a context of `},
		"wrong context of drain":     {[]string{"drain", "node/worker", kubeconfig, "--kube-context=prod"}, exit.Usage, `--kube-context: "prod": must be a context of `},
		"--context of a dataplane":   {[]string{"drain", "dataplane/web", kubeconfig, "--context=c"}, exit.Usage, "--context: must not be set for a dataplane"},
		"kubeconfig that is no file": {[]string{"watchdog", "status", "--kubeconfig=/nowhere"}, exit.Failed, "read kubeconfig: stat /nowhere: no such file or directory"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := on(virtual.NewNetwork()).run(t.Context(), tc.args, strings.NewReader(""), &stdout, &stderr)
			if code != tc.code || !strings.Contains(stderr.String(), tc.text) {
				t.Errorf("exit code %d, want %d, stderr\n%s\nwant %s", code, tc.code, stderr.String(), tc.text)
			}
		})
	}
}
