package virtual

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
)

// ServeHTTP serves HTTP in memory until the test ends, over TLS unless secured is nil. It returns a dial function like
// net.Dialer.DialContext that connects to it, whatever the address.
func ServeHTTP(t testing.TB, handler http.Handler, secured *tls.Config) func(ctx context.Context,
	network, address string) (net.Conn, error) {
	t.Helper()
	const (
		host        = "10.0.0.1:443"
		bufferBytes = 64 << 10 // like a kernel's: a response without an end does not fill the memory
	)
	n := NewNetwork()
	n.BufferBytes = bufferBytes
	l, err := n.Listen(t.Context(), "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	if secured != nil {
		l = tls.NewListener(l, secured)
	}
	server, served := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0)}, make(chan struct{}) //nolint:gosec // only for the test
	go func() {
		defer close(served)
		_ = server.Serve(l) // until l is closed
	}()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-served
	})
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.DialFrom("10.0.0.2")(ctx, network, host)
	}
}
