package sockets

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestSocketOptionsOfChecks reads the options of a connecting socket. The redirection recognizes checks by the
// socket's priority.
func TestSocketOptionsOfChecks(t *testing.T) {
	at := full(t)
	port := int32(at.Port())
	tests := map[string]struct {
		probe  mesh.Probe
		linger int // 1 if closing the connection resets it
	}{
		"httpGet":   {mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}}, 0},
		"hook":      {mesh.Probe{Type: mesh.ProbePostStart, HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: port}}, 0},
		"tcpSocket": {mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: port}}, 1},
		"grpc":      {mesh.Probe{GRPC: &mesh.GRPCProbe{Port: port}}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			check := probe.NewCheck(tc.probe, at.Addr(), time.Hour, nil)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				check.Ask(ctx)
			}()
			defer func() {
				cancel()
				<-ended
				check.End()
			}()
			var priority, linger int
			wait.Until(t, "the options of the socket", func() error {
				all := waiting(t, at)
				if len(all) != 1 {
					return fmt.Errorf("%d sockets wait for the connection, want one", len(all))
				}
				fd, err := descriptor(all[0].inode)
				if err != nil {
					return err
				}
				if priority, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY); err != nil {
					return err
				}
				linger, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LINGER)
				return err
			})
			if priority != mesh.SocketPriority || linger != tc.linger {
				t.Errorf("SO_PRIORITY = %d and SO_LINGER = %d, want %d and %d", priority, linger, mesh.SocketPriority, tc.linger)
			}
		})
	}
}

// TestTCPCheckLeavesNothing checks that neither side keeps a socket in any state.
func TestTCPCheckLeavesNothing(t *testing.T) {
	l, at := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // the client reset it
		}
	}()
	check, err := probe.NewTCPCheck(at, time.Hour, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if err := check(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, e := range table(t) {
			if e.remote == inTable(at) {
				t.Fatalf("the check leaves a socket in state %d", e.state)
			}
		}
	}
	wait.Until(t, "the application's sockets to end", func() error {
		for _, e := range table(t) {
			if e.local == inTable(at) && e.state != listening {
				return fmt.Errorf("one is in state %d", e.state)
			}
		}
		return nil
	})
}
