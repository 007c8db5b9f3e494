package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
)

const (
	// grpcHead is how long the headers of a call of gRPC may be, in bytes.
	grpcHead = 4 << 10
	// grpcSlop is how much of a request by gRPC, in bytes, belongs to HTTP/2.
	grpcSlop = 2 << 10
	// maxCall is how long a request by gRPC may be, in bytes. A flood of frames ends there.
	maxCall = grpcSlop + grpcHead + maxMessage
)

// servers serve several listeners, with one limit on connections. Contexts of requests have the one of base.
type servers struct {
	connections *connections
	http, grpc  *http.Server
	n           int        // number of listeners
	ended       chan error // one for each listener
}

func newServers(base context.Context, handler http.Handler, maxHead int, answer answerer) *servers {
	s := &servers{connections: newConnections(maxConnections)}
	s.http = s.server(base, handler, maxHead)
	s.grpc = s.server(base, http.HandlerFunc(answer.serveGRPC), grpcHead)
	s.grpc.Protocols = new(http.Protocols)
	s.grpc.Protocols.SetUnencryptedHTTP2(true)
	// A caller has one call for each connection. Small windows and tables are enough for that.
	s.grpc.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1, MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 16 << 10}
	return s
}

func (s *servers) server(base context.Context, handler http.Handler, maxHead int) *http.Server {
	return &http.Server{
		Handler:                      handler,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHead,
		BaseContext:                  func(net.Listener) context.Context { return base },
		ConnContext:                  s.connections.withConn,
		ConnState:                    s.connections.track,
		ErrorLog:                     log.New(io.Discard, "", 0), // callers could fill the log
	}
}

// serve serves all listeners until they end, those for gRPC as isGRPC says.
func (s *servers) serve(all []net.Listener, isGRPC func(net.Listener) bool) {
	s.n, s.ended = len(all), make(chan error, len(all))
	for _, l := range all {
		go func() {
			if isGRPC(l) {
				s.ended <- s.serveGRPC(l)
			} else {
				s.ended <- named(s.http.Serve(s.connections.listener(l)), l)
			}
		}()
	}
}

func (s *servers) serveGRPC(l net.Listener) error {
	return named(s.grpc.Serve(newGate(s.connections, l)), l)
}

func named(err error, l net.Listener) error {
	if errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
}

// shutdown ends gracefully, as far as there is time.
func (s *servers) shutdown(ctx context.Context) error {
	return errors.Join(s.http.Shutdown(ctx), s.grpc.Shutdown(ctx))
}

func (s *servers) close() error { return errors.Join(s.http.Close(), s.grpc.Close()) }

// wait waits for the end of n listeners, and returns errors but for those that come from the end of the servers.
func (s *servers) wait(n int) error {
	var errs []error
	for range n {
		if err := <-s.ended; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
