package identity

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// connLimits are the limits of connections that are not authenticated, or not yet. The zero value has the defaults.
type connLimits struct {
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

// Reasons for closing a connection, as values of the metric's label.
const (
	closedLimit           = "limit"
	closedHandshake       = "handshake"
	closedUnauthenticated = "unauthenticated"
	closedExpiring        = "expiring"
)

// ServerOptions returns the credentials for a gRPC server of agents and ADS. A connection ends before the certificate of
// its client does, since a client uses a new certificate only for its next connection. PeerFromContext returns the caller.
func (a *Authority) ServerOptions() []grpc.ServerOption { return a.serverOptions(connLimits{}) }

func (a *Authority) serverOptions(l connLimits) []grpc.ServerOption {
	l.handshakes = cmp.Or(l.handshakes, 1024)
	l.handshakeTimeout = cmp.Or(l.handshakeTimeout, 5*time.Second)
	l.waiting = cmp.Or(l.waiting, 8192)
	l.waitTimeout = cmp.Or(l.waitTimeout, 20*time.Second)
	l.unauthenticated = cmp.Or(l.unauthenticated, 256)
	l.unauthenticatedLife = cmp.Or(l.unauthenticatedLife, 30*time.Second)
	l.unauthenticatedBytes = cmp.Or(l.unauthenticatedBytes, 256<<10)
	c := &serverCredentials{
		TransportCredentials: credentials.NewTLS(a.tlsConfig()),
		authority:            a,
		limits:               l,
		handshakes:           make(chan struct{}, l.handshakes),
		waiting:              make(chan struct{}, l.waiting),
		unauthenticated:      make(chan struct{}, l.unauthenticated),
	}
	return []grpc.ServerOption{grpc.Creds(c), grpc.ConnectionTimeout(l.waitTimeout + l.handshakeTimeout)}
}

// serverCredentials are TLS credentials that limit unauthenticated connections and end connections in time.
type serverCredentials struct {
	credentials.TransportCredentials
	authority *Authority
	limits    connLimits
	// Semaphores: each element is one connection.
	handshakes, waiting, unauthenticated chan struct{}
}

var errTooMany = errors.New("too many connections without a client certificate")

// awaitHandshake waits until the connection may begin its handshake, in order of arrival. It returns false if too many
// connections wait, or if it has waited too long.
func (c *serverCredentials) awaitHandshake() bool {
	if tryAcquire(c.handshakes) {
		return true
	}
	if !tryAcquire(c.waiting) {
		return false
	}
	defer func() { <-c.waiting }()
	timer := time.NewTimer(c.limits.waitTimeout)
	defer timer.Stop()
	select {
	case c.handshakes <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	closed := c.authority.metrics.closed
	if !c.awaitHandshake() {
		closed.WithLabelValues(closedLimit).Inc()
		return nil, nil, errTooMany
	}
	defer func() { <-c.handshakes }()
	if err := raw.SetDeadline(time.Now().Add(c.limits.handshakeTimeout)); err != nil { // gRPC clears the deadline
		return nil, nil, err
	}
	c.authority.metrics.unauthenticated.Inc()
	defer c.authority.metrics.unauthenticated.Dec()
	g := &guardedConn{Conn: raw}
	g.budget.Store(c.limits.unauthenticatedBytes)
	conn, info, err := c.TransportCredentials.ServerHandshake(g)
	if err != nil {
		closed.WithLabelValues(closedHandshake).Inc()
		return nil, nil, err
	}
	auth := authInfo{TLSInfo: info.(credentials.TLSInfo)}
	chain := auth.State.PeerCertificates
	if len(chain) == 0 {
		return c.admitUnauthenticated(conn, g, auth)
	}
	p, err := c.authority.peerOf(chain[0])
	if err != nil {
		return nil, nil, err
	}
	auth.peer = &p
	g.budget.Store(math.MaxInt64)
	g.closeAfter(connLife(p.NotAfter.Sub(c.authority.now())), closed.WithLabelValues(closedExpiring).Inc)
	return conn, auth, nil
}

func (c *serverCredentials) admitUnauthenticated(conn net.Conn, g *guardedConn, auth authInfo) (net.Conn, credentials.AuthInfo, error) {
	m := c.authority.metrics
	if !tryAcquire(c.unauthenticated) {
		m.closed.WithLabelValues(closedLimit).Inc()
		return nil, nil, errTooMany
	}
	m.unauthenticated.Inc()
	g.onClose(func() {
		<-c.unauthenticated
		m.unauthenticated.Dec()
	})
	g.closeAfter(c.limits.unauthenticatedLife, m.closed.WithLabelValues(closedUnauthenticated).Inc)
	return conn, auth, nil
}

// Clone implements credentials.TransportCredentials. The limits are shared.
func (c *serverCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	clone.TransportCredentials = c.TransportCredentials.Clone()
	return &clone
}

func tryAcquire(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		return false
	}
}

// connLife returns how long a connection may last whose certificate is valid for left: 80 to 90 % of that, at random, so
// that proxies whose certificates were issued together do not reconnect together. By then they have a new certificate,
// which they get after two thirds of the life of the old one.
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

var errTooLong = errors.New("too many bytes on a connection without a client certificate")

// Read implements net.Conn.
func (g *guardedConn) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if g.budget.Add(int64(-n)) < 0 {
		return 0, errTooLong
	}
	return n, err
}

// closeAfter closes the connection after d, and calls count if it is still open then. It is called at most once.
func (g *guardedConn) closeAfter(d time.Duration, count func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(d, func() {
		if !g.closed.Load() {
			count()
		}
		_ = g.Close() // the reader gets the error
	})
}

// onClose sets what is called when the connection is closed. It is called at most once.
func (g *guardedConn) onClose(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cleanup = f
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

// authInfo is the result of the handshake.
type authInfo struct {
	credentials.TLSInfo
	peer *Peer // nil without a client certificate
}

var errUnauthenticated = errors.New("the caller has no client certificate")

// PeerFromContext returns the proxy that makes a call, on a server with ServerOptions. It returns an error if the caller
// has no client certificate.
func PeerFromContext(ctx context.Context) (Peer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, errUnauthenticated
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok || info.peer == nil {
		return Peer{}, errUnauthenticated
	}
	return *info.peer, nil
}

var _ credentials.TransportCredentials = (*serverCredentials)(nil)
