package mtls

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestServerThatServesNoCalls refuses calls for a while: the client reads why, and then its connection ends. Those that are open end at once.
func TestServerThatServesNoCalls(t *testing.T) {
	s := serve(t, limits{})
	pair, _ := s.certificate(time.Hour)
	open := s.watch(s.tls(pair))
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls(pair))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	check := func() error {
		_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
		return err
	}
	if err := check(); err != nil {
		t.Fatal(err)
	}

	s.away.Store(true)
	if got := status.Convert(check()); got.Code() != codes.Unavailable || got.Message() != "another replica is ahead" {
		t.Errorf("the answer is %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("a connection goes on whose call was refused")
	}
	s.counts(closedAway, 1)
	s.credentials.CloseAll()
	select {
	case <-open:
	case <-time.After(patience):
		t.Fatal("a connection goes on that was there before")
	}
	s.counts(closedAway, 2)
	if n := len(s.credentials.settled.all()); n != 0 {
		t.Errorf("%d connections are kept", n)
	}

	s.away.Store(false)
	if err := check(); err != nil {
		t.Errorf("after that: %v", err)
	}
}
