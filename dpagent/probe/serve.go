package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// Limits of the server. The kubelet sends a few hundred bytes at once, and leaves.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 10 * time.Second
	writeTimeout  = 5 * time.Second
	// headerBytes that a request may have besides a path of the table.
	headerBytes = 4 << 10
	// serverSlop is what net/http takes besides.
	serverSlop = 4 << 10
	// shutdownTimeout is what checks have to end by themselves.
	shutdownTimeout = time.Second
)

// Serve answers on l until ctx ends, and closes l. What waits then is told Errored, and hooks are cut.
func (h *Handler) Serve(ctx context.Context, l net.Listener) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	connections := newConnections(maxConnections)
	server := &http.Server{
		Handler:                      h,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            headerTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               headerBytes + h.longestPath(),
		BaseContext:                  func(net.Listener) context.Context { return working },
		ConnContext:                  connections.withConn,
		ConnState:                    connections.track,
		ErrorLog:                     log.New(io.Discard, "", 0), // of callers, who would fill the log
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(connections.listener(l)) }()
	select {
	case err := <-ended: // the listener broke
		stop()
		err = errors.Join(err, server.Close())
		h.running.Wait()
		return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	shutdown := func() error {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		return server.Shutdown(timeout)
	}
	if shutdown() != nil { // something goes on
		stop()
		if shutdown() != nil { // callers that do not read or write
			_ = server.Close() // nothing else can be done for them
		}
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
	}
	h.running.Wait()
	return nil
}

// MaxRequest is the longest request that Serve takes, in bytes, or more.
func (h *Handler) MaxRequest() int { return serverSlop + headerBytes + h.longestPath() }

func (h *Handler) longestPath() int {
	longest := 0
	for _, p := range h.o.Table {
		longest = max(longest, len(p.VirtualPath()))
	}
	return longest
}

// ignoreBody makes sure that a request's body is not waited for.
func ignoreBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // where it cannot be set nobody reads either
}
