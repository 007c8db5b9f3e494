package health_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func dial(t *testing.T, n *virtual.Network) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) { return n.DialFrom(caller)(ctx, "tcp", to) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

func TestGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := health.New(health.Options{})
		r.Add(health.Livez, health.Check{Name: "store", Run: result(nil)})
		r.Add(health.Readyz, health.Check{Name: "view", Run: result(errors.New("none yet"))})
		r.Add(health.Readyz, health.Check{Name: "store", Run: result(errors.New("away")), Informational: true})
		client := dial(t, serve(t, r))
		for service, want := range map[string]string{
			"": "NOT_SERVING", "livez": "SERVING", "readyz": "NOT_SERVING", "livez/store": "SERVING", "readyz/store": "SERVING", "readyz/view": "NOT_SERVING",
			"livez/view": "NotFound", "x": "NotFound", "/": "NotFound", "livez/": "NotFound", "readyz/view/": "NotFound",
		} {
			answer, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
			got := answer.GetStatus().String()
			if err != nil {
				got = status.Code(err).String()
			}
			if got != want {
				t.Errorf("Check(%q) = %s, want %s", service, got, want)
			}
		}
		list, err := client.List(t.Context(), &grpc_health_v1.HealthListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range slices.Sorted(maps.Keys(list.GetStatuses())) {
			got = append(got, fmt.Sprintf("%s=%s", name, list.GetStatuses()[name].GetStatus()))
		}
		if want := []string{"livez=SERVING", "livez/store=SERVING", "readyz=NOT_SERVING", "readyz/store=SERVING", "readyz/view=NOT_SERVING"}; !slices.Equal(got, want) {
			t.Errorf("List() = %v, want %v", got, want)
		}
	})
}

// TestWatch watches for longer than other requests to the same server may take.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Bool
		r := health.New(health.Options{})
		r.Add(health.Readyz, health.Check{Name: "view", Keep: time.Nanosecond, Run: func(context.Context) error {
			if fails.Load() {
				return errors.New("no")
			}
			return nil
		}})
		client := dial(t, serve(t, r))
		watch, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "readyz"})
		if err != nil {
			t.Fatal(err)
		}
		next := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Fatalf("got %s %v, want %s", got.GetStatus(), err, want)
			}
		}
		next(grpc_health_v1.HealthCheckResponse_SERVING)
		time.Sleep(time.Hour)
		fails.Store(true)
		next(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		fails.Store(false)
		next(grpc_health_v1.HealthCheckResponse_SERVING)

		unknown, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := unknown.Recv(); err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Errorf("an unknown service: %s %v", got.GetStatus(), err)
		}
	})
}

// TestWatchesAreLimited opens more watches than the limit: each is answered, and the oldest end.
func TestWatchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := serve(t, health.New(health.Options{}))
		var watches []grpc_health_v1.Health_WatchClient
		for range 5 { // connections, each of which has a limit, too
			client := dial(t, n)
			for range 16 {
				watch, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if _, err := watch.Recv(); err != nil {
					t.Fatalf("watch %d: %v", len(watches), err)
				}
				watches = append(watches, watch)
			}
		}
		for i, watch := range watches[:16] {
			if _, err := watch.Recv(); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("watch %d of 80: %v, want it ended for newer ones", i, err)
			}
		}
		ended := make(chan error, 1)
		go func() {
			_, err := watches[16].Recv() // until its connection is closed
			ended <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-ended:
			t.Errorf("watch 16 of 80: %v, want it open", err)
		default:
		}
	})
}
