package mtls

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sonde-mesh/sonde/identity"
)

// authInfo is the result of a handshake.
type authInfo struct {
	credentials.TLSInfo
	peer *identity.Peer // nil without a client certificate
	conn *guardedConn
}

var errUnauthenticated = errors.New("the caller has no client certificate")

// PeerFromContext returns the proxy that makes a call, on a server with these ServerOptions. It returns an error if the
// caller has no client certificate.
func PeerFromContext(ctx context.Context) (identity.Peer, error) {
	info, ok := infoFromContext(ctx)
	if !ok || info.peer == nil {
		return identity.Peer{}, errUnauthenticated
	}
	return *info.peer, nil
}

func infoFromContext(ctx context.Context) (authInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return authInfo{}, false
	}
	info, ok := p.AuthInfo.(authInfo)
	return info, ok
}

// arrive charges each call to its connection, also a call that the client resets at once. The goroutine that reads from
// the connection calls it, and then pauses.
func arrive(ctx context.Context, _ *tap.Info) (context.Context, error) {
	if info, ok := infoFromContext(ctx); ok {
		info.conn.charge(callCost)
	}
	return ctx, nil
}

// unary and stream mark the connection of a call as busy, and reject calls that need a certificate if the client has
// none. Otherwise a stream without a certificate could keep a place that an agent needs to join.
func (c *Credentials) unary(
	ctx context.Context, request any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	begin := time.Now()
	info, end, err := c.begin(ctx, call.FullMethod)
	if err != nil {
		return nil, err
	}
	defer end()
	response, err := next(ctx, request)
	if err == nil && info.peer == nil { // the agent has joined
		c.unauthenticated.Took(begin.Sub(info.conn.settled))
	}
	return response, err
}

func (c *Credentials) stream(
	srv any, stream grpc.ServerStream, call *grpc.StreamServerInfo, next grpc.StreamHandler,
) error {
	_, end, err := c.begin(stream.Context(), call.FullMethod)
	if err != nil {
		return err
	}
	defer end()
	return next(srv, stream)
}

// begin begins a call, until end is called. The error is a gRPC status.
func (c *Credentials) begin(ctx context.Context, method string) (info authInfo, end func(), err error) {
	info, ok := infoFromContext(ctx)
	if !ok {
		return authInfo{}, nil, status.Error(codes.Internal, "a call without a handshake")
	}
	if err := c.o.Serves(); err != nil {
		c.closeSoon(info.conn)
		return authInfo{}, nil, status.Error(codes.Unavailable, err.Error())
	}
	if info.peer == nil && !slices.Contains(c.o.Joins, method) {
		c.o.Logger.WarnContext(ctx, "rejected a call without a certificate", "peer", info.conn.RemoteAddr().String(),
			"method", method)
		return authInfo{}, nil, status.Error(codes.Unauthenticated, errUnauthenticated.Error())
	}
	return info, info.conn.place.Begin(), nil
}
