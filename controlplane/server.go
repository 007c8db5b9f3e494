package controlplane

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/xds"
)

const (
	// streamsPerConnection is enough for one agent or one Envoy: an ADS stream or a session, and a call. The client queues
	// further calls. Each stream may buffer almost a whole message.
	streamsPerConnection = 4
	// maxHeaderBytes of a call, decoded: in HPACK, a few bytes can repeat kilobytes (RFC 7541 §7.3).
	maxHeaderBytes = 16 << 10
	// Unread bytes that a client may send; a message for which the server waits may be larger.
	streamWindow     = 64 << 10
	connectionWindow = 256 << 10
	// readBuffer of a connection. gRPC's default is 32 KiB.
	readBuffer = 8 << 10
	// leastPingInterval is how often clients may ping; Envoy does so every 30 s.
	leastPingInterval = 10 * time.Second
	// The server notices after the sum of both that a client has vanished.
	pingInterval = 30 * time.Second
	pingTimeout  = 10 * time.Second
	// ageGrace is how long a connection that has reached its maximum age may still be used. An agent reconnects at
	// once, and so does an Envoy when its stream ends with the connection.
	ageGrace = 10 * time.Second
	// endTimeout bounds calls when the control plane stops; streams end at once.
	endTimeout = 2 * time.Second
)

// NewServer returns a gRPC server for agents and ADS with these credentials. Clients must reconnect after age, plus or
// minus a tenth, which gRPC draws per connection; 0 means never. For ADS, more must have xds.ServerOptions.
func NewServer(c *mtls.Credentials, age time.Duration, more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(append(c.ServerOptions(),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: age, MaxConnectionAgeGrace: ageGrace, Time: pingInterval, Timeout: pingTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
	), more...)...)
}

// serveAgents serves agents and ADS, on one port with the same credentials.
func (cp *ControlPlane) serveAgents(ctx context.Context) error {
	server := NewServer(cp.credentials, cp.o.ConnectionAge, xds.ServerOptions()...)
	cp.agents.Register(server)
	cp.pipeline.XDS.Register(server)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cp.credentials.Close()
		timer := time.AfterFunc(endTimeout, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
	})
	err := server.Serve(cp.listeners.agents)
	if stop() {
		server.Stop()
		cp.pipeline.XDS.Wait()
		return fmt.Errorf("serve agents on %s: %w", cp.listeners.agents.Addr(), err)
	}
	<-stopped
	cp.pipeline.XDS.Wait()
	return nil
}
