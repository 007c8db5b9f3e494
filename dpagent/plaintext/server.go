// Package plaintext counts the traffic that Envoy accepts in mode PERMISSIVE and that mode STRICT would reject, by
// source. It reads Envoy's access logs of each connection or request, and Envoy's counters of lost records. Its memory
// is bounded, whatever clients do.
package plaintext

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxMessage is far larger than Envoy's batches of 16 KiB.
	maxMessage = 64 << 10
	// maxStreams limits the streams of a connection: each worker of Envoy has its own connection.
	maxStreams = 32

	service, method = "opentelemetry.proto.collector.logs.v1.LogsService", "Export"
)

// Serve receives Envoy's access logs on l until ctx ends, and closes l. Only programs that may enter the agent's
// directory can connect.
func (c *Counter) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.WriteBufferSize(1<<10), grpc.ReadBufferSize(4<<10),
	)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: method, Handler: func(_ any, _ context.Context, decode func(any) error,
			_ grpc.UnaryServerInterceptor) (any, error) {
			return c.take(decode)
		},
	}}}, nil)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve envoy's access log: %w", err)
	}
	return nil
}

// take counts a batch. On an error, Envoy counts the batch as lost.
func (c *Counter) take(decode func(any) error) (any, error) {
	var b batch
	if err := decode(&b); err != nil {
		c.o.Logger.Warn("failed to decode a batch of envoy's access log, its records count as lost", "err", err)
		return nil, err //nolint:wrapcheck // a gRPC status
	}
	k, ok := logs[b.log]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "unknown access log %.50q", b.log)
	}
	c.add(k, b.records)
	return nil, nil //nolint:nilnil // codec writes the empty response
}

// codec decodes batches. A response is empty.
type codec struct{}

// Marshal implements encoding.Codec.
func (codec) Marshal(any) ([]byte, error) { return nil, nil }

// Unmarshal implements encoding.Codec.
func (codec) Unmarshal(data []byte, v any) error {
	b, ok := v.(*batch)
	if !ok {
		return fmt.Errorf("decode an access log into %T", v)
	}
	return b.decode(data)
}

// Name implements encoding.Codec.
func (codec) Name() string { return "proto" }
