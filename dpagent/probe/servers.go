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
	// grpcHead is the maximum length of a gRPC call's headers, in bytes.
	grpcHead = 4 << 10
	// grpcSlop is the part of a gRPC request, in bytes, besides headers and the name of the service.
	grpcSlop = 4 << 10
	// anyService is the maximum length of a service's name, in bytes, where callers may name any service.
	anyService = 4 << 10
)

// maxCall returns the maximum length of a gRPC request, in bytes. It ends a flood of frames.
func maxCall(service int) int { return grpcSlop + grpcHead + service }

// servers serve several listeners, with one limit on connections. The contexts of requests derive from base's.
type servers struct {
	connections *connections
	http, grpc  *http.Server
	n           int        // number of listeners
	ended       chan error // one for each listener
}

func newServers(base context.Context, handler http.Handler, maxHead, connections int, answer answerer) *servers {
	s := &servers{connections: newConnections(connections)}
	s.http = s.server(base, handler, maxHead)
	s.grpc = s.server(base, http.HandlerFunc(answer.serveGRPC), grpcHead)
	s.grpc.Protocols = new(http.Protocols)
	s.grpc.Protocols.SetUnencryptedHTTP2(true)
	s.grpc.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1} // a caller makes one call per connection
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

// serve serves all listeners until they end. For each gRPC listener, grpc returns its entry.
func (s *servers) serve(all []net.Listener, grpc func(net.Listener) *entry) {
	s.n, s.ended = len(all), make(chan error, len(all))
	for _, l := range all {
		go func() {
			if e := grpc(l); e != nil {
				s.ended <- s.serveGRPC(l, len(e.probe.GRPC.Service))
			} else {
				s.ended <- named(s.http.Serve(s.connections.listener(l)), l)
			}
		}()
	}
}

// serveGRPC serves calls for a service whose name has at most this length.
func (s *servers) serveGRPC(l net.Listener, service int) error {
	return named(s.grpc.Serve(newGate(s.connections, l, maxCall(service))), l)
}

func named(err error, l net.Listener) error {
	if errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
}

// shutdown shuts down gracefully, for as long as ctx allows.
func (s *servers) shutdown(ctx context.Context) error {
	return errors.Join(s.http.Shutdown(ctx), s.grpc.Shutdown(ctx))
}

func (s *servers) close() error { return errors.Join(s.http.Close(), s.grpc.Close()) }

// wait waits for the end of n listeners, and returns their errors, except those caused by the shutdown of the servers.
func (s *servers) wait(n int) error {
	var errs []error
	for range n {
		if err := <-s.ended; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
