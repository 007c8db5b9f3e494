package mesh

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// relay forwards connections to an address until it is cut.
type relay struct {
	to   string
	wait sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

// newRelay listens at one address and forwards to another until the test ends.
func newRelay(t *testing.T, at, to string) *relay {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
	must(t, err)
	r := &relay{to: to, conns: map[net.Conn]struct{}{}}
	r.wait.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.wait.Go(func() { r.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.set(true)
		r.wait.Wait()
	})
	return r
}

// set closes all connections and accepts no more, or accepts them again.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for conn := range r.conns {
			_ = conn.Close()
		}
	}
}

// open counts the open connections.
func (r *relay) open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

func (r *relay) pass(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	other, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", r.to)
	if err != nil {
		return
	}
	defer func() { _ = other.Close() }()
	if !r.keep(conn) {
		return
	}
	defer r.forget(conn)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(conn, other) // an error means that one side is gone
		_ = conn.Close()
	})
	_, _ = io.Copy(other, conn)
	_ = other.Close()
	back.Wait()
}

func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.cut {
		r.conns[conn] = struct{}{}
	}
	return !r.cut
}

func (r *relay) forget(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}
