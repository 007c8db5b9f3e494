// Package sondectl_test runs the real sondectl: exit codes, signals, output on a terminal, and configurations that
// Envoy accepts.
package sondectl_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/harness"
)

var programs = sync.OnceValues(func() (harness.Programs, error) { return harness.Build(context.Background(), false) })

func built(t *testing.T) harness.Programs {
	t.Helper()
	p, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sondectl returns a command that does not read the user's kubeconfig.
func sondectl(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), built(t).Ctl, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=/nowhere")
	return cmd
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		args           string
		code           int
		stdout, stderr string
	}{
		"help":            {"--help", 0, "Exit codes:", ""},
		"unknown command": {"gets", 2, "", `sondectl: command "gets" not found: did you mean get? (see sondectl --help)` + "\n"},
		"no such file":    {"validate -f /nowhere", 1, "", "sondectl: validate: read objects: stat /nowhere: no such file or directory\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := sondectl(t, strings.Fields(tc.args)...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the process state has the exit code
			if code := cmd.ProcessState.ExitCode(); code != tc.code || stderr.String() != tc.stderr {
				t.Errorf("exit code %d, stderr %q, want %d and %q", code, &stderr, tc.code, tc.stderr)
			}
			if got := stdout.String(); !strings.Contains(got, tc.stdout) || (got == "") != (tc.stdout == "") {
				t.Errorf("stdout is %q, want %q", got, tc.stdout)
			}
		})
	}
}

// TestASignalEndsQuietly sends signals to commands that wait for an unresponsive control plane.
func TestASignalEndsQuietly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	state, err := store.OpenState(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	if _, err := serving.Open(t.Context(), serving.Options{Storage: state.Secrets()}); err != nil {
		t.Fatal(err)
	}
	ca, token := filepath.Join(dir, "serving-ca.crt"), write(t, "token", "token")
	for name, tc := range map[string]struct {
		args   []string
		signal syscall.Signal
	}{
		"SIGINT during inspect":  {[]string{"inspect", "dataplane", "web-1", "--type=stats"}, syscall.SIGINT},
		"SIGTERM during a watch": {[]string{"get", "proxies", "--watch"}, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close() //nolint:errcheck // nothing was sent
			defer context.AfterFunc(wait.Context(t), func() { _ = silent.Close() })()
			cmd := sondectl(t, append(tc.args, "--address="+silent.Addr().String(), "--ca-cert-file="+ca, "--token-file="+token)...)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			conn, err := silent.Accept()
			if err != nil {
				t.Fatalf("sondectl does not connect: %v", err)
			}
			defer conn.Close() //nolint:errcheck // nothing was sent
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the process ends by a signal
			if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != tc.signal || said.Len() > 0 {
				t.Errorf("ended by %v and prints %q, want %v and no output", got, said.String(), tc.signal)
			}
		})
	}
}
