package health

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// MaxConnections limits the connections. At the limit, a new connection evicts an idle one.
const MaxConnections = 1024

// Limits of the server, which gets a few small requests per second from kubelets and Prometheus.
const (
	requestTimeout    = 10 * time.Second
	maxHeaderBytes    = 8 << 10
	maxBytesPerSecond = 256 << 10 // for reading, over all connections
	maxStreams        = 16        // per HTTP/2 connection
	shutdownTimeout   = time.Second
)

// Handler serves /livez, /readyz, both also by grpc.health.v1, /metrics if metrics is not nil, and a hint for other
// paths.
func Handler(r *Registry, metrics http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	for _, group := range groups {
		mux.Handle("/"+string(group), Page(r, group))
		mux.Handle("/"+string(group)+"/{name}", Page(r, group))
	}
	mux.Handle(grpcPath, newGRPC(r))
	mux.Handle("GET /metrics", metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		http.Error(w, "not found: this is a port for health and metrics, with /livez, /readyz and /metrics",
			http.StatusNotFound)
	})
	return mux
}

// panics passes on only an HTTP server's messages about panics, since messages about callers could fill the log.
type panics struct{ io.Writer }

// Write implements io.Writer.
func (p panics) Write(line []byte) (int, error) {
	if !bytes.Contains(line, []byte("panic serving")) {
		return len(line), nil
	}
	return p.Writer.Write(line) //nolint:wrapcheck // the writer's own error
}

// Limits of a server for clients other than kubelets.
type Limits struct {
	// Connections at once. Default MaxConnections.
	Connections int
	// HTTP1 disables HTTP/2 and gRPC.
	HTTP1 bool
}

// Serve serves h on l until ctx ends, and closes l. The size and duration of requests and the number of connections are
// limited. At the limit, a new connection evicts another one.
func Serve(ctx context.Context, l net.Listener, h http.Handler, limits Limits) error {
	connections := connlimit.New(cmp.Or(limits.Connections, MaxConnections)).Pace(maxBytesPerSecond)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!limits.HTTP1)
	server := &http.Server{
		Protocols:                    &protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext:                  func(net.Listener) context.Context { return ctx }, // so that watches end with ctx
		Handler:                      h,
		DisableGeneralOptionsHandler: true, // otherwise the server answers OPTIONS *
		ReadHeaderTimeout:            requestTimeout,
		ReadTimeout:                  requestTimeout,
		WriteTimeout:                 2 * requestTimeout,
		IdleTimeout:                  time.Minute,
		MaxHeaderBytes:               maxHeaderBytes,
		ConnState:                    connections.ConnState,
		ConnContext:                  connections.ConnContext,
		ErrorLog:                     log.New(panics{os.Stderr}, "", log.LstdFlags),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(timeout); err != nil {
			err = server.Close() // connections that do not end by themselves
			stopped <- err
			return
		}
		stopped <- nil
	})
	err := server.Serve(connections.Listener(l))
	if stop() { // ctx has not ended: the listener failed
		return fmt.Errorf("serve health on %s: %w", l.Addr(), err)
	}
	return <-stopped
}
