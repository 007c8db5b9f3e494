// Package mtls has the credentials of the gRPC server for agents and ADS. It says which proxy calls, limits connections without
// a client certificate, and ends each connection before the certificate of its client does.
package mtls

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"math"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sonde-mesh/sonde/identity"
)

// Verifier says whom the certificates of a client identify, and why they are refused. The handshake has verified the key of
// the first. *identity.Authority implements it.
type Verifier interface {
	Verify(chain []*x509.Certificate) (identity.Peer, error)
}

// Options of Credentials.
type Options struct {
	// TLS has the serving certificate. It is cloned. Required.
	TLS *tls.Config
	// Verifier of client certificates. Required.
	Verifier Verifier
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock of certificates. Default time.Now.
	Now func() time.Time
}

// Credentials are TLS credentials that limit unauthenticated connections and end connections in time. A client without a
// certificate is accepted, since it may join.
type Credentials struct {
	credentials.TransportCredentials
	o       Options
	limits  limits
	metrics *metrics
	// refusals limits log messages that unauthenticated clients can cause: one that is refused reconnects at once.
	refusals *rate.Limiter
	// Semaphores: each element is one connection.
	handshakes, waiting, unauthenticated chan struct{}
}

// New returns credentials. The limits are shared by all servers that use them.
func New(o Options) (*Credentials, error) { return newCredentials(o, limits{}) }

func newCredentials(o Options, l limits) (*Credentials, error) {
	if o.TLS == nil || o.Verifier == nil {
		return nil, errors.New("mtls: Options.TLS and Options.Verifier are required")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.TLS = o.TLS.Clone()
	o.TLS.ClientAuth = tls.RequestClientCert
	// A resumed session would have the certificate of the first handshake, even after a renewal.
	o.TLS.SessionTicketsDisabled = true
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	l = l.withDefaults()
	return &Credentials{
		TransportCredentials: credentials.NewTLS(o.TLS),
		o:                    o,
		limits:               l,
		metrics:              m,
		refusals:             rate.NewLimiter(1, 10),
		handshakes:           make(chan struct{}, l.handshakes),
		waiting:              make(chan struct{}, l.waiting),
		unauthenticated:      make(chan struct{}, l.unauthenticated),
	}, nil
}

// ServerOptions returns the options of a gRPC server with these credentials. There PeerFromContext returns the caller.
func (c *Credentials) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.Creds(c), grpc.ConnectionTimeout(c.limits.waitTimeout + c.limits.handshakeTimeout)}
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !c.awaitHandshake() {
		c.metrics.closed.WithLabelValues(closedLimit).Inc()
		return nil, nil, errTooMany
	}
	defer func() { <-c.handshakes }()
	if err := raw.SetDeadline(time.Now().Add(c.limits.handshakeTimeout)); err != nil { // gRPC clears the deadline
		return nil, nil, err
	}
	c.metrics.unauthenticated.Inc()
	defer c.metrics.unauthenticated.Dec()
	g := &guardedConn{Conn: raw}
	g.budget.Store(c.limits.unauthenticatedBytes)
	conn, auth, err := c.handshake(g)
	if err != nil {
		c.metrics.closed.WithLabelValues(closedHandshake).Inc()
		return nil, nil, err
	}
	if auth.peer == nil {
		if err := c.admitUnauthenticated(g); err != nil {
			return nil, nil, err
		}
		return conn, auth, nil
	}
	g.budget.Store(math.MaxInt64)
	g.closeAfter(connLife(auth.peer.NotAfter.Sub(c.o.Now())), c.metrics.closed.WithLabelValues(closedExpiring).Inc, nil)
	return conn, auth, nil
}

// handshake makes the TLS handshake. The client is verified in it, so that the client learns that it is refused.
func (c *Credentials) handshake(raw net.Conn) (net.Conn, authInfo, error) {
	var auth authInfo
	config := c.o.TLS.Clone() // each connection has its own peer
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil
		}
		p, err := c.o.Verifier.Verify(s.PeerCertificates)
		if err != nil {
			if c.refusals.Allow() {
				c.o.Logger.Warn("client certificate refused", "err", err)
			}
			return err
		}
		auth.peer = &p
		return nil
	}
	conn, info, err := credentials.NewTLS(config).ServerHandshake(raw)
	if err != nil {
		return nil, authInfo{}, err
	}
	auth.TLSInfo = info.(credentials.TLSInfo)
	return conn, auth, nil
}

// awaitHandshake waits until the connection may begin its handshake, in order of arrival. It returns false if too many
// connections wait, or if it has waited too long.
func (c *Credentials) awaitHandshake() bool {
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

func (c *Credentials) admitUnauthenticated(g *guardedConn) error {
	if !tryAcquire(c.unauthenticated) {
		c.metrics.closed.WithLabelValues(closedLimit).Inc()
		return errTooMany
	}
	c.metrics.unauthenticated.Inc()
	g.closeAfter(c.limits.unauthenticatedLife, c.metrics.closed.WithLabelValues(closedUnauthenticated).Inc, func() {
		<-c.unauthenticated
		c.metrics.unauthenticated.Dec()
	})
	return nil
}

// Clone implements credentials.TransportCredentials. The limits are shared.
func (c *Credentials) Clone() credentials.TransportCredentials {
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

// authInfo is the result of the handshake.
type authInfo struct {
	credentials.TLSInfo
	peer *identity.Peer // nil without a client certificate
}

var errUnauthenticated = errors.New("the caller has no client certificate")

// PeerFromContext returns the proxy that makes a call, on a server with these ServerOptions. It returns an error if the caller
// has no client certificate.
func PeerFromContext(ctx context.Context) (identity.Peer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return identity.Peer{}, errUnauthenticated
	}
	info, ok := p.AuthInfo.(authInfo)
	if !ok || info.peer == nil {
		return identity.Peer{}, errUnauthenticated
	}
	return *info.peer, nil
}

var _ credentials.TransportCredentials = (*Credentials)(nil)
