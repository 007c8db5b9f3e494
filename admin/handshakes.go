package admin

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// handshakes are credentials that keep the connection of each call, for beginCall.
type handshakes struct {
	credentials.TransportCredentials
}

// accepted is the result of a handshake.
type accepted struct {
	credentials.TLSInfo
	conn net.Conn
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := h.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err //nolint:wrapcheck // gRPC names the client
	}
	return conn, accepted{info.(credentials.TLSInfo), raw}, nil
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone()}
}

// beginCall has the connection of a call that may be made make room for no other, until end is called.
func beginCall(ctx context.Context) (end func()) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return func() {}
	}
	info, ok := p.AuthInfo.(accepted)
	if !ok {
		return func() {}
	}
	return connlimit.Begin(info.conn)
}
