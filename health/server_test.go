package health_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and returns its address. When the test ends, it stops the server and checks its error.
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

func TestServeTakesOneMoreConnectionWhenAnotherEnds(t *testing.T) {
	address := serve(t)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var idle net.Conn
	for range 64 {
		idle = dial()
	}
	late := dial()
	if _, err := late.Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	read := func(limit time.Duration) error {
		if err := late.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		_, err := late.Read(make([]byte, 1))
		return err
	}
	if err := read(50 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection too many: %v, want no answer yet", err)
	}
	if err := idle.Close(); err != nil {
		t.Fatal(err)
	}
	if err := read(5 * time.Second); err != nil {
		t.Errorf("after another connection has ended: %v, want an answer", err)
	}
}
