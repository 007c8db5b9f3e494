package main

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// grpcServer serves gRPC health, and UnaryCall of gRPC's own test service: an echo that names the instance.
func grpcServer(name string) server {
	return func(ctx context.Context, l net.Listener) error {
		s := healthServer()
		testgrpc.RegisterTestServiceServer(s, &echoServer{name: name})
		stop := context.AfterFunc(ctx, s.Stop)
		defer stop()
		return s.Serve(l)
	}
}

// healthServer serves only gRPC health: SERVING for the empty service.
func healthServer() *grpc.Server {
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	return s
}

type echoServer struct {
	testgrpc.UnimplementedTestServiceServer
	name string
}

// UnaryCall answers with the payload of the request, and in a header with what Envoy told about the caller.
func (s *echoServer) UnaryCall(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	const peer = "x-forwarded-client-cert"
	if values := metadata.ValueFromIncomingContext(ctx, peer); len(values) > 0 {
		if err := grpc.SetHeader(ctx, metadata.MD{peer: values}); err != nil {
			return nil, err
		}
	}
	return &testgrpc.SimpleResponse{Payload: r.GetPayload(), ServerId: s.name, Hostname: s.name}, nil
}
