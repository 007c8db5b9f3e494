package main

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// scarce is a listener without descriptors at first.
type scarce struct {
	net.Listener
	left int
}

func (s *scarce) Accept() (net.Conn, error) {
	switch s.left--; {
	case s.left > 0:
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	case s.left == 0:
		conn, _ := net.Pipe()
		return conn, nil
	}
	return nil, net.ErrClosed
}

// TestAcceptAll checks that a helper that lacks descriptors for a while does not spin meanwhile, and serves afterwards.
func TestAcceptAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, handled := time.Now(), 0
		err := acceptAll(&scarce{left: 51}, func(conn net.Conn) {
			handled++
			_ = conn.Close()
		})
		if !errors.Is(err, net.ErrClosed) || handled != 1 || time.Since(began) != 50*acceptPause {
			t.Errorf("acceptAll() = %v after %s, %d connections, want 1 after %s", err, time.Since(began), handled, 50*acceptPause)
		}
	})
}
