// Package grpctest connects tests to a gRPC server in memory.
package grpctest

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// bufferBytes is how much unread data each side of the connection buffers.
const bufferBytes = 1 << 16

// Connect serves s, and returns a connection to it. Both end with the test, before cleanups registered earlier.
func Connect(t testing.TB, s *grpc.Server, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(bufferBytes)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return conn
}
