// Package health tests package health with the kernel's sockets.
package health

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServiceManagerIsNotified listens as the service manager, as systemd does.
func TestServiceManagerIsNotified(t *testing.T) {
	at := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(t.TempDir(), "notify")}
	manager, err := net.ListenUnixgram(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = manager.Close() }()
	t.Setenv("NOTIFY_SOCKET", at.Name)
	started, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(ended)
		health.New(health.Options{}).Watch(ctx, started)
	}()
	next := func(want string) {
		t.Helper()
		buffer := make([]byte, 4096)
		n, err := manager.Read(buffer)
		if got := string(buffer[:n]); got != want || err != nil {
			t.Errorf("the service manager receives %q, %v, want %q", got, err, want)
		}
	}
	close(started)
	next("READY=1")
	cancel()
	next("STOPPING=1")
	<-ended
}
