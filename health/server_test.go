package health_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Address of the server in a bubble, and the address of callers.
const (
	address = "10.0.0.1:80"
	caller  = "10.0.0.2"
)

// serve starts a server in a bubble, and returns the network that it listens in. When the test ends, it stops the
// server and checks its error.
func serve(t *testing.T, r *health.Registry) *virtual.Network {
	t.Helper()
	return serveLimited(t, r, health.Limits{})
}

func serveLimited(t *testing.T, r *health.Registry, limits health.Limits) *virtual.Network {
	t.Helper()
	return serveFrom(t, r, limits, func(l net.Listener) net.Listener { return l })
}

// serveFrom serves the connections of a listener that wraps the network's listener.
func serveFrom(t *testing.T, r *health.Registry, limits health.Limits, wrap func(net.Listener) net.Listener) *virtual.Network {
	t.Helper()
	n := virtual.NewNetwork()
	l, err := n.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- health.Serve(ctx, wrap(l), health.Handler(r, health.Metrics(prometheus.NewRegistry())), limits)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return n
}

// newClient returns a client that opens a new connection for each request.
func newClient(n *virtual.Network) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: n.DialFrom(caller), DisableKeepAlives: true}, Timeout: 5 * time.Second}
}

func TestServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(serve(t, health.New(health.Options{})))
		for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 200, "/debug/pprof/": 404, "/": 404} {
			response, err := client.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("GET %s = %d, want %d", path, response.StatusCode, want)
			}
		}
	})
}
