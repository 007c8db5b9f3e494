package mtls

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestServerThatServesNoCalls rejects calls for a while: a client gets the reason, and then its connection is closed.
// CloseAll closes open connections at once.
func TestServerThatServesNoCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{})
		pair, _ := s.certificate(time.Hour)
		open := s.watch(s.tls(pair))
		s.caller()
		conn := s.client(s.tls(pair))
		check := func() error {
			_, err := healthv1.NewHealthClient(conn).Check(wait.Context(t), &healthv1.HealthCheckRequest{})
			return err
		}
		if err := check(); err != nil {
			t.Fatal(err)
		}

		s.away.Store(true)
		if got := status.Convert(check()); got.Code() != codes.Unavailable || got.Message() != "another replica is ahead" {
			t.Errorf("the answer is %v", got)
		}
		time.Sleep(closeSoonAfter)
		s.counts(closedAway, 1)
		if got := conn.GetState(); got == connectivity.Ready {
			t.Error("a connection goes on whose call was refused")
		}
		s.credentials.CloseAll()
		s.counts(closedAway, 2)
		<-open
		if n := len(s.credentials.settled.all()); n != 0 {
			t.Errorf("%d connections are kept", n)
		}

		s.away.Store(false)
		if err := check(); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}
