// Package mtls provides the credentials of the gRPC server for agents and ADS. They identify the calling proxy, share
// the server among its clients, and end each connection before its client certificate expires.
package mtls

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// Verifier returns the proxy that client certificates identify, or an error. The handshake has verified the key of the
// first certificate. *identity.Authority implements it.
type Verifier interface {
	Verify(chain []*x509.Certificate) (identity.Peer, error)
}

// Options of Credentials.
type Options struct {
	// TLS has the serving certificate. It is cloned. Required.
	TLS *tls.Config
	// Verifier of client certificates. Required.
	Verifier Verifier
	// Joins are the full names of methods that need no client certificate. Default: none.
	Joins []string
	// Serves returns why calls are rejected for now, nil if they are served. Default: always nil.
	Serves func() error
	// Logger. Default: no logging.
	Logger *slog.Logger
	// Registerer of the metrics. Default: no metrics.
	Registerer prometheus.Registerer
	// Memory limit of the process in bytes, which limits the connections without a certificate. Default 512 MiB.
	Memory uint64
	// Places sets additional limits of connections, for example by file descriptors. Default: none.
	Places Places
	// Now is the clock for certificates. Default time.Now.
	Now func() time.Time
}

// Places limits the connections in each stage of Credentials; 0 means that only memory limits them.
type Places struct{ Arrivals, Joins, Proxies int }

// Credentials are TLS credentials. A connection goes through up to three stages, each with a limited number of places,
// which sources share (package connlimit): arrivals, until its ClientHello has arrived and a handshake may start;
// handshakes, for the rest of the handshake; then identified, among the connections of its proxy, or unauthenticated,
// until its agent has joined.
type Credentials struct {
	credentials.TransportCredentials
	o       Options
	limits  limits
	metrics *metrics

	arrivals        *connlimit.Places[netip.Prefix]
	handshakes      *connlimit.Places[netip.Prefix]
	unauthenticated *connlimit.Places[netip.Prefix]
	identified      *connlimit.Places[mesh.ID]
	paces           *paces
	settled         *connections
}

// New returns credentials. The limits are shared by all servers that use them.
func New(o Options) (*Credentials, error) { return newCredentials(o, limits{}) }

func newCredentials(o Options, l limits) (*Credentials, error) {
	if o.TLS == nil || o.Verifier == nil {
		return nil, errors.New("mtls: Options.TLS and Options.Verifier are required")
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Serves == nil {
		o.Serves = func() error { return nil }
	}
	o.TLS = o.TLS.Clone()
	o.TLS.ClientAuth = tls.RequestClientCert
	// A resumed session would have the certificate of the first handshake, even if the client has renewed it since.
	o.TLS.SessionTicketsDisabled = true
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	l = l.withDefaults(o.Memory, o.Places)
	return &Credentials{
		TransportCredentials: credentials.NewTLS(o.TLS),
		o:                    o,
		limits:               l,
		metrics:              m,
		arrivals:             connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: l.arrivals}),
		handshakes: connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: l.handshakes, Patience: l.patience,
			MaxPatience: l.maxPatience}),
		unauthenticated: connlimit.NewPlaces[netip.Prefix](connlimit.Options{
			Total: l.unauthenticated, Patience: l.patience, MaxPatience: l.maxPatience,
		}),
		identified: connlimit.NewPlaces[mesh.ID](connlimit.Options{
			Total: l.proxies, Each: l.identified, Patience: l.patience, MaxPatience: l.maxPatience,
		}),
		paces:   &paces{l: l, of: map[mesh.ID]*pace{}},
		settled: &connections{open: map[*guardedConn]struct{}{}},
	}, nil
}

// ServerOptions returns the options of a gRPC server with these credentials, on which PeerFromContext returns the
// caller.
func (c *Credentials) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(c), grpc.ConnectionTimeout(c.limits.total()), grpc.InTapHandle(arrive),
		grpc.ChainUnaryInterceptor(c.unary), grpc.ChainStreamInterceptor(c.stream),
	}
}

// Close ends all connections without a certificate, or in their handshake, since a stopping gRPC server would wait for
// them.
func (c *Credentials) Close() {
	c.arrivals.Close()
	c.handshakes.Close()
	c.unauthenticated.Close()
}

// ServerHandshake implements credentials.TransportCredentials.
func (c *Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.metrics.unauthenticated.Inc()
	defer c.metrics.unauthenticated.Dec()
	e := entrant{c: c, raw: raw, source: connlimit.SourceOf(raw.RemoteAddr())}
	conn, auth, err := e.enter()
	if err != nil {
		c.metrics.closed.WithLabelValues(e.reason(err)).Inc()
		return nil, nil, err
	}
	return conn, auth, nil
}

// entrant is an unauthenticated connection.
type entrant struct {
	c      *Credentials
	raw    net.Conn
	source netip.Prefix
	ctx    context.Context //nolint:containedctx // it ends when the arrival loses its place
	cancel func()
}

// drop closes the connection, which has lost its place.
func (e *entrant) drop() {
	e.cancel()
	_ = e.raw.Close()
}

// reason returns why a connection was closed, as a value of the metric's label. If the connection was closed from this
// side, it has lost its place.
func (e *entrant) reason(err error) string {
	if errors.Is(err, errTooMany) || errors.Is(err, net.ErrClosed) {
		return closedLimit
	}
	return closedHandshake
}

// enter moves a connection through the stages. While it waits for a place in the next stage, it keeps its place among
// the arrivals.
func (e *entrant) enter() (net.Conn, credentials.AuthInfo, error) {
	e.ctx, e.cancel = context.WithCancel(context.Background())
	defer e.cancel()
	arrival := e.c.arrivals.Take(e.source, e.drop)
	defer arrival.Leave()
	if err := e.raw.SetDeadline(time.Now().Add(e.c.limits.helloTimeout)); err != nil {
		return nil, nil, err //nolint:wrapcheck // gRPC names the client
	}
	hello, err := readHello(e.raw)
	if err != nil {
		return nil, nil, err
	}
	arrival.Busy()
	turn, ok := e.c.handshakes.Await(context.Background(), e.c.limits.waitTimeout, e.source, e.drop)
	if !ok {
		return nil, nil, errTooMany
	}
	defer turn.Leave()
	if err := e.raw.SetDeadline(time.Now().Add(e.c.limits.handshakeTimeout)); err != nil {
		return nil, nil, err //nolint:wrapcheck // gRPC names the client
	}
	g := newGuardedConn(e.raw)
	g.hello, g.turn = hello, turn
	g.budget.Store(e.c.limits.handshakeBytes)
	conn, auth, err := e.handshake(g)
	g.turn = nil
	if err != nil {
		return nil, nil, err
	}
	turn.Leave()
	if auth.peer != nil {
		e.c.handshakes.Took(g.longest)
		err = e.identified(g, auth.peer)
	} else {
		err = e.joins(g)
	}
	if err != nil {
		return nil, nil, err
	}
	// deadline for the first bytes of HTTP/2; gRPC clears it
	if err := e.raw.SetDeadline(time.Now().Add(e.c.limits.handshakeTimeout)); err != nil {
		return nil, nil, errors.Join(err, g.Close())
	}
	return conn, auth, nil
}

// handshake performs the TLS handshake with client verification, so that a rejected client gets the error.
func (e *entrant) handshake(g *guardedConn) (net.Conn, authInfo, error) {
	auth := authInfo{conn: g}
	config := e.c.o.TLS.Clone() // each connection has its own peer
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return nil
		}
		p, err := e.c.o.Verifier.Verify(s.PeerCertificates)
		if err != nil {
			e.c.o.Logger.Warn("rejected client certificate", "peer", e.raw.RemoteAddr().String(), "err", err)
			return err
		}
		auth.peer = &p
		return nil
	}
	conn, info, err := credentials.NewTLS(config).ServerHandshake(g)
	if err != nil {
		return nil, authInfo{}, fmt.Errorf("handshake: %w", err)
	}
	auth.TLSInfo = info.(credentials.TLSInfo)
	return &watchedConn{Conn: conn, aged: &g.aged}, auth, nil
}

// identified takes a place among the connections of a proxy. If no place is free, it never evicts a connection with a
// call.
func (e *entrant) identified(g *guardedConn, p *identity.Peer) error {
	counter := e.c.metrics.closed
	place, ok := e.c.identified.Await(e.ctx, e.c.limits.waitTimeout, p.ID(), func() {
		counter.WithLabelValues(closedIdentity).Inc()
		_ = g.Close()
	})
	if !ok && e.ctx.Err() != nil { // the client has disconnected, or the server stops
		return errTooMany
	}
	if !ok {
		e.c.o.Logger.Warn("rejected a proxy, the limit of open files allows no more connections",
			"peer", e.raw.RemoteAddr().String(), "limit", e.c.limits.proxies)
		return errTooMany
	}
	place.Idle()
	pace := e.c.paces.take(p.ID())
	e.c.settled.add(g)
	g.settle(place, pace.limiter, func() {
		e.c.settled.remove(g)
		e.c.paces.leave(p.ID())
		if g.aged.Load() {
			e.c.metrics.aged.Inc()
		}
	})
	g.closeAfter(connLife(p.NotAfter.Sub(e.c.o.Now())), counter.WithLabelValues(closedExpiring).Inc)
	return nil
}

// joins waits for a place among the connections without a certificate.
func (e *entrant) joins(g *guardedConn) error {
	place, ok := e.c.unauthenticated.Await(context.Background(), e.c.limits.waitTimeout, e.source, func() {
		e.c.metrics.closed.WithLabelValues(closedLimit).Inc()
		_ = g.Close()
	})
	if !ok {
		return errTooMany
	}
	g.budget.Store(e.c.limits.unauthenticatedBytes)
	place.Idle()
	e.c.metrics.unauthenticated.Inc()
	e.c.settled.add(g)
	g.settle(place, nil, func() {
		e.c.settled.remove(g)
		e.c.metrics.unauthenticated.Dec()
	})
	g.closeAfter(e.c.limits.unauthenticatedLife, e.c.metrics.closed.WithLabelValues(closedUnauthenticated).Inc)
	return nil
}

// Clone implements credentials.TransportCredentials. The limits are shared.
func (c *Credentials) Clone() credentials.TransportCredentials {
	clone := *c
	clone.TransportCredentials = c.TransportCredentials.Clone()
	return &clone
}

var _ credentials.TransportCredentials = (*Credentials)(nil)
