package probe

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"
)

// Limits of the server. The kubelet sends a few hundred bytes at once.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 10 * time.Second
	writeTimeout  = 5 * time.Second
	// headerBytes is the maximum length of a request besides its path.
	headerBytes = 4 << 10
	// serverSlop is what net/http allows beyond MaxHeaderBytes.
	serverSlop = 4 << 10
	// shutdownTimeout is how long checks may still run when the agent shuts down.
	shutdownTimeout = time.Second
)

// Ports returns the ports to listen on, in any order. Requests longer than their limits are rejected.
func (h *Handler) Ports() (all []Port) {
	if h.o.Port != 0 {
		all = append(all, Port{Address: h.Address(), MaxHead: serverSlop + headerBytes + h.longestPath()})
	}
	for port, e := range h.byPort {
		all = append(all, Port{Address: h.at(port), MaxHead: maxCall(len(e.probe.GRPC.Service)), GRPC: true,
			Timeout: e.timeout})
	}
	slices.SortFunc(all, func(a, b Port) int { return a.Address.Compare(b.Address) })
	return all
}

// Port is a port on which a Handler is served.
type Port struct {
	Address netip.AddrPort
	// MaxHead is at least the length of the longest accepted request without a body, in bytes; for GRPC, of the longest
	// request including its body.
	MaxHead int
	// GRPC means that the port is for one gRPC probe, with this Timeout.
	GRPC    bool
	Timeout time.Duration
}

// Serve serves the listeners of all Ports until ctx ends and no hook is running, and closes them. Probes that still
// wait are then answered Errored.
func (h *Handler) Serve(ctx context.Context, listeners ...net.Listener) error {
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s := newServers(working, h, headerBytes+h.longestPath(), h.o.Connections, h.askService)
	s.serve(listeners, func(l net.Listener) *entry { return h.byPort[portOf(l.Addr())] })
	if err := h.waitForEnd(ctx, s.ended); err != nil { // a listener failed
		stop()
		err = errors.Join(err, s.close(), s.wait(s.n-1))
		h.running.Wait()
		return err
	}
	shutdown := func() error {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		return s.shutdown(timeout)
	}
	if shutdown() != nil { // checks are still running
		stop()
		if shutdown() != nil { // callers do not read
			_ = s.close() // nothing else can be done
		}
	}
	err := s.wait(s.n)
	h.running.Wait()
	return err
}

// waitForEnd returns nil when ctx has ended and no hook is running, or the error of failed. Hooks have no timeout,
// since the kubelet kills this process after the pod's grace period.
func (h *Handler) waitForEnd(ctx context.Context, failed <-chan error) error {
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	if n := h.hooks.n.Load(); n > 0 {
		h.o.Logger.Info("waiting for running hooks before shutdown", "hooks", n)
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

func (h *Handler) longestPath() int {
	longest := 0
	for _, p := range h.o.Table {
		longest = max(longest, len(p.VirtualPath()))
	}
	return longest
}

// ignoreBody prevents the server from waiting for the body of a request.
func ignoreBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // fails only with a test recorder
}
