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

// Limits of the server. The kubelet sends a few hundred bytes at once.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 10 * time.Second
	writeTimeout  = 5 * time.Second
	// headerBytes is how long a request may be besides its path.
	headerBytes = 4 << 10
	// serverSlop is what net/http allows beyond MaxHeaderBytes.
	serverSlop = 4 << 10
	// shutdownTimeout is how long checks may still take when the agent ends.
	shutdownTimeout = time.Second
)

// Serve serves l until ctx ends and no hook is being called, and closes l. Probes that wait then are answered Errored.
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
		ErrorLog:                     log.New(io.Discard, "", 0), // callers could fill the log
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(connections.listener(l)) }()
	if err := h.waitForEnd(ctx, ended); err != nil { // the listener failed
		stop()
		err = errors.Join(err, server.Close())
		h.running.Wait()
		return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
	}
	shutdown := func() error {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		return server.Shutdown(timeout)
	}
	if shutdown() != nil { // checks are still running
		stop()
		if shutdown() != nil { // callers do not read
			_ = server.Close() // nothing else can be done
		}
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes on %s: %w", l.Addr(), err)
	}
	h.running.Wait()
	return nil
}

// waitForEnd returns nil when ctx has ended and no hook is being called, or the error of failed. Hooks have no timeout: the
// kubelet kills this process when the pod's grace period is over.
func (h *Handler) waitForEnd(ctx context.Context, failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	if n := h.hooks.n.Load(); n > 0 {
		h.o.Logger.Info("waiting for hooks before the end", "hooks", n)
	}
	for h.hooks.n.Load() > 0 {
		select {
		case err := <-failed:
			return err
		case <-h.hooks.ended:
		}
	}
	return nil
}

// MaxRequest returns the length of the longest request without a body that Serve accepts, or more, in bytes.
func (h *Handler) MaxRequest() int { return serverSlop + headerBytes + h.longestPath() }

func (h *Handler) longestPath() int {
	longest := 0
	for _, p := range h.o.Table {
		longest = max(longest, len(p.VirtualPath()))
	}
	return longest
}

// ignoreBody makes sure that the server does not wait for the body of a request.
func ignoreBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // only a recorder in tests does not support it
}
