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

// MaxConnections is how many connections there may be: at the limit those that ask nothing make room.
const MaxConnections = 1024

// Limits of the server, which gets a few small requests per second from kubelets and Prometheus.
const (
	requestTimeout    = 10 * time.Second
	maxHeaderBytes    = 8 << 10
	maxBytesPerSecond = 256 << 10 // that are read of all connections together
	maxStreams        = 16        // per connection of HTTP/2
	shutdownTimeout   = time.Second
)

// Handler serves /livez, /readyz, the same by grpc.health.v1, and with metrics /metrics, and nothing else but what it is at /.
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
		http.Error(w, "not found: this is a port for health and metrics, with /livez, /readyz and /metrics", http.StatusNotFound)
	})
	return mux
}

// panics passes on what an HTTP server says of panics. With all that it says of callers these could fill the log.
type panics struct{ io.Writer }

// Write implements io.Writer.
func (p panics) Write(line []byte) (int, error) {
	if !bytes.Contains(line, []byte("panic serving")) {
		return len(line), nil
	}
	return p.Writer.Write(line) //nolint:wrapcheck // it is that writer's
}

// Limits of a server for other clients than kubelets.
type Limits struct {
	// Connections at once. Default MaxConnections.
	Connections int
	// HTTP1 says that no client speaks HTTP/2 and gRPC.
	HTTP1 bool
}

// Serve serves h on l until ctx ends, and closes l. The size and duration of requests and the number of connections are
// limited: at the limit, a new connection takes the place of another.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeLimited(ctx, l, h, Limits{})
}

// ServeLimited is Serve with other limits.
func ServeLimited(ctx context.Context, l net.Listener, h http.Handler, limits Limits) error {
	connections := connlimit.New(cmp.Or(limits.Connections, MaxConnections)).Pace(maxBytesPerSecond)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!limits.HTTP1)
	server := &http.Server{
		Protocols:                    &protocols,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext:                  func(net.Listener) context.Context { return ctx }, // watches end with it
		Handler:                      h,
		DisableGeneralOptionsHandler: true, // for OPTIONS *, too
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
	if stop() { // ctx has not ended: the listener broke
		return fmt.Errorf("serve health on %s: %w", l.Addr(), err)
	}
	return <-stopped
}
