package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/store"
)

// TestASignalEndsQuietly ends commands that wait for a control plane that does not answer.
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
	ca, token := filepath.Join(dir, "serving-ca.crt"), filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args   []string
		signal syscall.Signal
	}{
		"SIGINT while it inspects": {[]string{"inspect", "dataplane", "web-1", "--type=stats"}, syscall.SIGINT},
		"SIGTERM while it watches": {[]string{"get", "proxies", "--watch"}, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			silent, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close() //nolint:errcheck // nothing was sent
			cmd := exec.CommandContext(t.Context(), "sondectl", append(tc.args, "--address="+silent.Addr().String(), "--ca-cert-file="+ca, "--token-file="+token)...)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := silent.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			conn, err := silent.Accept()
			if err != nil {
				t.Fatalf("it does not connect: %v\n%s", err, said.String())
			}
			defer conn.Close() //nolint:errcheck // nothing was sent
			if err := cmd.Process.Signal(tc.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // it has ended by a signal
			if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != tc.signal || said.Len() > 0 {
				t.Errorf("ended by %v and says %q, want %v and nothing", got, said.String(), tc.signal)
			}
		})
	}
}
