package admin

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sonde-mesh/sonde/admin/watch"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// MaxConnections is the maximum of concurrent connections: at the limit, connections without a valid token are closed.
const MaxConnections = 512

// Limits of the server.
const (
	maxRequestBytes   = 64 << 10
	maxHeaderBytes    = 16 << 10
	maxStreamsPerConn = 32
	maxBytesPerSecond = 1 << 20 // read from all connections together
	handshakeTimeout  = 5 * time.Second
	// maxIdle is how long a connection without a call stays open, since it counts against MaxConnections.
	maxIdle = time.Minute
	// pingEvery is how long a silent client keeps its connection and its calls: this, and gRPC's timeout of 20 s.
	pingEvery = 30 * time.Second
	// endTimeout bounds the calls that are in progress when the server stops.
	endTimeout = 5 * time.Second
)

// Server serves the admin API.
type Server struct {
	grpc        *grpc.Server
	watch       *watch.Server
	connections int
}

// NewServer returns a server. It returns an error if a required option is missing.
func NewServer(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	config := o.TLS.Clone()
	config.MinVersion = tls.VersionTLS13
	g := newGate(o.BearerToken, o.Access, o.Logger)
	s := &Server{connections: o.Connections, grpc: grpc.NewServer(
		// Failed handshakes are not logged, since a client without a token is not a caller.
		grpc.Creds(grpcconn.Credentials(credentials.NewTLS(config), func(net.Addr, error) {})),
		grpc.UnaryInterceptor(g.unary),
		grpc.StreamInterceptor(g.stream),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: maxIdle, Time: pingEvery}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}),
	)}
	calls := &service{
		Answers: o.Lists, Rotations: o.Rotations, Strict: o.Strict, Restarts: o.Restarts, Freeze: o.Freeze, o: o,
		rights: g.rights(adminv1.AdminService_Watch_FullMethodName),
	}
	s.watch = watch.New(watch.Options{
		Calls: calls.once, Ready: o.View.Ready,
		Unresponsive: func(ctx context.Context) (map[mesh.ID]bool, []string) { return o.Lists.Agents.Unresponsive(ctx, "") },
	})
	calls.watch = s.watch
	adminv1.RegisterAdminServiceServer(s.grpc, calls)
	return s, nil
}

// Serve serves calls on lis, which it closes, until ctx ends or lis fails. It returns nil if ctx ended.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	stopped := make(chan struct{})
	serving, cancel := context.WithCancel(ctx)
	go func() {
		defer close(stopped)
		<-serving.Done()
		s.watch.Stop()
		timer := time.AfterFunc(endTimeout, s.grpc.Stop)
		defer timer.Stop()
		s.grpc.GracefulStop()
		s.watch.Wait()
	}()
	err := s.grpc.Serve(connlimit.New(s.connections).Pace(maxBytesPerSecond).Listener(lis))
	cancel()
	<-stopped
	if ctx.Err() == nil && err != nil {
		return fmt.Errorf("serve the admin API at %s: %w", lis.Addr(), err)
	}
	return nil
}
