package mtls

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// limits are the limits of connections that are not authenticated, or not yet. The zero value has the defaults.
type limits struct {
	// handshakes that may be in progress at once. Default 1024.
	handshakes int
	// handshakeTimeout of TLS and the first bytes of HTTP/2. Default 5s.
	handshakeTimeout time.Duration
	// waiting connections may wait for one of these handshakes: all clients reconnect at once after a restart. Default 8192.
	waiting int
	// waitTimeout is how long each of them may wait. Default 20s.
	waitTimeout time.Duration
	// unauthenticated connections that may be open at once, of agents that join. Default 256.
	unauthenticated int
	// unauthenticatedLife is how long each of them may last. Default 30s.
	unauthenticatedLife time.Duration
	// unauthenticatedBytes is how much is read from each of them, including the handshake. Default 256 KiB: a request to
	// join is a token and a CSR, while messages of an authenticated proxy may be much larger.
	unauthenticatedBytes int64
}

func (l limits) withDefaults() limits {
	l.handshakes = cmp.Or(l.handshakes, 1024)
	l.handshakeTimeout = cmp.Or(l.handshakeTimeout, 5*time.Second)
	l.waiting = cmp.Or(l.waiting, 8192)
	l.waitTimeout = cmp.Or(l.waitTimeout, 20*time.Second)
	l.unauthenticated = cmp.Or(l.unauthenticated, 256)
	l.unauthenticatedLife = cmp.Or(l.unauthenticatedLife, 30*time.Second)
	l.unauthenticatedBytes = cmp.Or(l.unauthenticatedBytes, 256<<10)
	return l
}

// connLife returns how long a connection may last whose certificate is valid for left: 80 to 90 % of that, at random, so
// that proxies whose certificates were issued together do not reconnect together. By then they have a new certificate,
// which they get after two thirds of the validity of the old one.
func connLife(left time.Duration) time.Duration {
	return time.Duration(float64(left) * (0.8 + 0.1*rand.Float64())) //nolint:gosec // it spreads load and guards nothing
}

// guardedConn is a connection with a limit on its life and on the bytes read.
type guardedConn struct {
	net.Conn
	closed atomic.Bool
	budget atomic.Int64 // bytes that may still be read

	mu      sync.Mutex
	timer   *time.Timer
	cleanup func()
}

var (
	errTooMany = errors.New("too many connections without a client certificate")
	errTooLong = errors.New("too many bytes on a connection without a client certificate")
)

// Read implements net.Conn.
func (g *guardedConn) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.budget.Add(int64(-n)) < 0 {
		return 0, errTooLong
	}
	return n, err
}

// closeAfter closes the connection after d, and calls expired if it is still open then. cleanup, if not nil, is called when
// it is closed, whoever does that. closeAfter is called at most once.
func (g *guardedConn) closeAfter(d time.Duration, expired, cleanup func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleanup = cleanup
	g.timer = time.AfterFunc(d, func() {
		if !g.closed.Load() {
			expired()
		}
		_ = g.Close() // the reader gets the error
	})
}

// Close implements net.Conn.
func (g *guardedConn) Close() error {
	if g.closed.CompareAndSwap(false, true) {
		g.mu.Lock()
		timer, cleanup := g.timer, g.cleanup
		g.mu.Unlock()
		if timer != nil {
			timer.Stop()
		}
		if cleanup != nil {
			cleanup()
		}
	}
	return g.Conn.Close()
}
