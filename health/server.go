package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// Limits of the server, which gets a few small requests per second from kubelets and Prometheus.
const (
	requestTimeout  = 10 * time.Second
	maxHeaderBytes  = 8 << 10
	maxConnections  = 64
	shutdownTimeout = time.Second
)

// Handler serves /livez, /readyz and /metrics, and nothing else.
func Handler(live, ready *Checks, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/livez", live)
	mux.Handle("/readyz", ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: requestTimeout,
		DisableCompression: true, // its buffers would be a third of an agent's memory
	}))
	return mux
}

// Serve serves h on l until ctx ends, and closes l. The size and duration of requests and the number of connections are
// limited.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: requestTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
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
	err := server.Serve(netutil.LimitListener(l, maxConnections))
	if stop() { // ctx has not ended: the listener broke
		return fmt.Errorf("serve health on %s: %w", l.Addr(), err)
	}
	return <-stopped
}
