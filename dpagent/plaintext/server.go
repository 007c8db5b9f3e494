// Package plaintext counts what Envoy takes in mode PERMISSIVE and a mesh in mode STRICT would refuse, and from whom: what Envoy's access logs say
// of each connection or request, and how many records have not come, by Envoy's own counters. What it keeps is bounded, whoever connects.
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
	// maxMessage is much more than a batch of 16 KiB.
	maxMessage = 64 << 10
	// maxStreams of a connection: each worker of Envoy has a connection.
	maxStreams = 32

	service, method = "opentelemetry.proto.collector.logs.v1.LogsService", "Export"
)

// Serve takes Envoy's access logs on l until ctx ends, and closes l. Only programs that may enter the agent's directory reach it.
func (c *Counter) Serve(ctx context.Context, l net.Listener) error {
	server := grpc.NewServer(
		grpc.ForceServerCodec(codec{}), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.WriteBufferSize(1<<10), grpc.ReadBufferSize(4<<10),
	)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: method, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
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

// take counts a batch. Of one that it does not understand Envoy counts that it has not arrived.
func (c *Counter) take(decode func(any) error) (any, error) {
	var b batch
	if err := decode(&b); err != nil {
		c.o.Logger.Warn("access log of Envoy not understood, what is in it counts without a source", "err", err)
		return nil, err //nolint:wrapcheck // it is a status
	}
	k, ok := logs[b.log]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "access log %.50q is not known", b.log)
	}
	c.add(k, b.records)
	return nil, nil //nolint:nilnil // codec makes the answer, which is empty
}

// codec decodes batches. An answer is empty.
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
