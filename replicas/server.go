package replicas

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// MaxConnections limits the connections.
const MaxConnections = 128

// Limits of the server. A caller without a replica's certificate gets no further than the handshake.
const (
	maxReceived       = 8 << 20 // bytes of a message: one proxy with all its inbounds, each with a reason
	maxHeaderBytes    = 16 << 10
	maxStreamsPerConn = 64
	// limit for all connections together: a snapshot of 10,000 proxies takes less than a second
	maxBytesPerSecond = 64 << 20
	handshakeTimeout  = 5 * time.Second
	// endTimeout bounds the calls that are in progress when the server stops.
	endTimeout = 2 * time.Second
)

// Serve serves the other replicas on lis, which it closes, until ctx ends or lis fails. It returns nil if ctx ended.
func (p *Peers) Serve(ctx context.Context, lis net.Listener) error {
	server := grpc.NewServer(
		grpc.Creds(grpcconn.Credentials(credentials.NewTLS(p.o.Server), p.refuseHandshake)),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			handle grpc.StreamHandler) error {
			defer grpcconn.Begin(stream.Context())()
			return handle(srv, stream)
		}),
		grpc.MaxRecvMsgSize(maxReceived),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval / 2, PermitWithoutStream: true}),
	)
	peerv1.RegisterPeerServiceServer(server, &service{peers: p})
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		p.endStreams()
		timer := time.AfterFunc(endTimeout, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
	})
	err := server.Serve(connlimit.New(p.o.Connections).Pace(maxBytesPerSecond).Listener(lis))
	if stop() {
		server.Stop()
		return fmt.Errorf("serve replicas at %s: %w", lis.Addr(), err)
	}
	<-stopped
	return nil
}

func (p *Peers) endStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range p.remotes {
		h.end(status.Error(codes.Unavailable, "this replica is stopping"))
	}
}

// service serves peerv1.PeerService.
type service struct {
	peerv1.UnimplementedPeerServiceServer
	peers *Peers
}

// caller returns the name of the calling replica.
func (s *service) caller(ctx context.Context) (string, error) {
	info, isTLS := grpcconn.TLS(ctx)
	if !isTLS {
		return "", errors.New("the caller has no certificate")
	}
	return s.peers.o.NameOf(info.State)
}

// refuseHandshake counts and logs a failed handshake.
func (p *Peers) refuseHandshake(client net.Addr, err error) {
	p.metrics.refused.Inc()
	p.o.Logger.Warn("rejected caller on the replica port", "peer", client.String(), "err", err)
}

func addressOf(ctx context.Context) string {
	if from, ok := peer.FromContext(ctx); ok {
		return from.Addr.String()
	}
	return ""
}

// Query implements peerv1.PeerServiceServer.
func (s *service) Query(r *peerv1.QueryRequest, stream peerv1.PeerService_QueryServer) error {
	view := mesh.EnvoyView(r.GetView())
	return s.peers.local.Query(stream.Context(), r.GetProxy(), view, func(data []byte) error {
		return stream.Send(&peerv1.QueryPart{Data: data})
	})
}

// CheckDuplicate implements peerv1.PeerServiceServer.
func (s *service) CheckDuplicate(
	ctx context.Context, r *peerv1.CheckDuplicateRequest,
) (*peerv1.CheckDuplicateResponse, error) {
	return &peerv1.CheckDuplicateResponse{Refusal: s.peers.local.CheckDuplicate(ctx, r.GetProxy(), r.GetProcess(),
		r.GetAddress())}, nil
}

// AskPlaintext implements peerv1.PeerServiceServer.
func (s *service) AskPlaintext(r *peerv1.AskPlaintextRequest, stream peerv1.PeerService_AskPlaintextServer) error {
	for _, p := range s.peers.local.AskPlaintext(stream.Context(), r.GetMeshes()) {
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return nil
}

// ListUnresponsive implements peerv1.PeerServiceServer.
func (s *service) ListUnresponsive(
	r *peerv1.ListUnresponsiveRequest, stream peerv1.PeerService_ListUnresponsiveServer,
) error {
	for _, id := range s.peers.local.ListUnresponsive(stream.Context(), r.GetMesh()) {
		if err := stream.Send(&peerv1.UnresponsiveProxy{Proxy: id}); err != nil {
			return err
		}
	}
	return nil
}

// ListStreams implements peerv1.PeerServiceServer.
func (s *service) ListStreams(r *peerv1.ListStreamsRequest, stream peerv1.PeerService_ListStreamsServer) error {
	for id, streams := range s.peers.local.Streams() {
		if r.GetProxiesOnly() {
			streams = nil
		}
		if err := stream.Send(&peerv1.ListStreamsPart{Proxy: id, Streams: streams}); err != nil {
			return err
		}
	}
	return nil
}
