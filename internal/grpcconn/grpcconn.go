// Package grpcconn provides credentials of gRPC servers that remember the connection of each call, so that a connection
// with a call is not evicted.
package grpcconn

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// handshakes are credentials that remember the connection.
type handshakes struct {
	credentials.TransportCredentials
	failed func(client net.Addr, err error)
}

// accepted is the result of a handshake.
type accepted struct {
	credentials.TLSInfo
	conn net.Conn
}

// Credentials returns TLS credentials that remember the connection. failed is called for failed handshakes.
func Credentials(
	tls credentials.TransportCredentials, failed func(client net.Addr, err error),
) credentials.TransportCredentials {
	return handshakes{tls, failed}
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		h.failed(raw.RemoteAddr(), err)
		return nil, nil, err //nolint:wrapcheck // gRPC names the client
	}
	return conn, accepted{info.(credentials.TLSInfo), raw}, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.failed}
}

// Begin protects the connection of a call from eviction until end is called.
func Begin(ctx context.Context) (end func()) {
	if of, ok := acceptedOf(ctx); ok {
		return connlimit.Begin(of.conn)
	}
	return func() {}
}

// Source returns the source to which the caller belongs.
func Source(ctx context.Context) netip.Prefix {
	if p, ok := peer.FromContext(ctx); ok {
		return connlimit.SourceOf(p.Addr)
	}
	return netip.Prefix{}
}

// TLS returns the result of the TLS handshake of a call's connection.
func TLS(ctx context.Context) (credentials.TLSInfo, bool) {
	of, ok := acceptedOf(ctx)
	return of.TLSInfo, ok
}

func acceptedOf(ctx context.Context) (accepted, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return accepted{}, false
	}
	of, ok := p.AuthInfo.(accepted)
	return of, ok
}
