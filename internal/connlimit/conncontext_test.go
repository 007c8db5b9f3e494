package connlimit_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// TestRequestsEndWithTheirConnection evicts the connection of a waiting request. The caller has sent one byte more than
// the request, after which http.Server no longer watches the connection.
func TestRequestsEndWithTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := connlimit.New(1)
		const address = "10.0.0.1:80"
		network := virtual.NewNetwork()
		inner, err := network.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		began, ended := make(chan context.Context), make(chan string)
		server := &http.Server{
			ConnState: limiter.ConnState, ConnContext: limiter.ConnContext, ReadHeaderTimeout: time.Minute,
			Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				began <- r.Context()
				<-r.Context().Done()
				ended <- r.URL.Path
			}),
		}
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			_ = server.Serve(limiter.Listener(inner)) // until inner is closed
		}()
		t.Cleanup(func() {
			_ = server.Close()
			<-stopped
		})
		ask := func(path string) (net.Conn, context.Context) {
			t.Helper()
			conn, err := network.DialFrom("10.0.0.2")(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			return conn, <-began
		}
		first, _ := ask("/first")
		if _, err := io.WriteString(first, "G"); err != nil {
			t.Fatal(err)
		}
		second, waits := ask("/second")
		if path := <-ended; path != "/first" || waits.Err() != nil {
			t.Errorf("%s has ended, and the second request: %v", path, waits.Err())
		}
		_ = second.Close() // the server notices this
		if path := <-ended; path != "/second" {
			t.Errorf("%s has ended", path)
		}
		_ = first.Close()
	})
}
