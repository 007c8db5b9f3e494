package health_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and returns its address; it is stopped, and its error checked, at the end of the test.
func serve(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- health.Serve(ctx, l, health.Handler(&health.Checks{}, &health.Checks{}, prometheus.NewRegistry()))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return l.Addr().String()
}

func TestServe(t *testing.T) {
	address := serve(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
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
}

func TestServeClosesWhatIsBeyondItsConnections(t *testing.T) {
	address := serve(t)
	var idle []net.Conn
	t.Cleanup(func() {
		for _, conn := range idle {
			_ = conn.Close()
		}
	})
	for range 64 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	idle = append(idle, conn)
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("one connection too many: %v, want EOF", err)
	}
}
