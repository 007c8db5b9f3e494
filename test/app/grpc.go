package main

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

// grpcServer serves gRPC health, and UnaryCall of gRPC's own test service: an echo that names the instance.
func grpcServer(state *state) server {
	return func(ctx context.Context, l net.Listener) error {
		s := healthServer(state)
		testgrpc.RegisterTestServiceServer(s, &echoServer{state: state})
		ended := make(chan struct{})
		stop := context.AfterFunc(ctx, func() {
			defer close(ended)
			force := time.AfterFunc(state.endOfRequests, s.Stop)
			defer force.Stop()
			s.GracefulStop()
		})
		err := s.Serve(l)
		if !stop() {
			<-ended
		}
		return err
	}
}

// serving sets the gRPC health of a service to SERVING.
func (s *state) serving(service string) {
	s.health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
}

// healthServer serves only gRPC health: SERVING for the empty service.
func healthServer(state *state) *grpc.Server {
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, state.health)
	return s
}

type echoServer struct {
	testgrpc.UnimplementedTestServiceServer
	state *state
}

// UnaryCall responds with the payload of the request, and with Envoy's header about the caller.
func (s *echoServer) UnaryCall(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	s.state.count("UnaryCall")
	const peer = "x-forwarded-client-cert"
	if values := metadata.ValueFromIncomingContext(ctx, peer); len(values) > 0 {
		if err := grpc.SetHeader(ctx, metadata.MD{peer: values}); err != nil {
			return nil, err
		}
	}
	return &testgrpc.SimpleResponse{Payload: r.GetPayload(), ServerId: s.state.name, Hostname: s.state.name}, nil
}
