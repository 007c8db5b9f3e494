package perport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// acceptPause is how long no connection is accepted after accepting one has failed, for instance since there are no file descriptors.
const acceptPause = 100 * time.Millisecond

// String says for people what it answers.
func (p Port) String() string { return fmt.Sprintf("TCP probes on %s", p.Address) }

// run asks the application once in each period, and has the port open while it accepts connections.
func (p Port) run(ctx context.Context, s *Server) {
	h := &holder{
		port: p, server: s, visitors: newVisitors(maxVisitors),
		logger: s.o.Logger.With("address", p.Address.String(), "application", p.Application.String()),
	}
	defer h.end()
	check := probe.NewTCPCheck(p.Application, period)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		h.follow(ctx, check(ctx))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// holder holds one port.
type holder struct {
	port     Port
	server   *Server
	logger   *slog.Logger
	visitors *visitors

	listener net.Listener // nil while the port is closed
	asked    bool         // the application has been asked
	open     bool         // it accepted the last connection
	running  sync.WaitGroup
}

// follow does as the application, which has accepted a connection if err is nil.
func (h *holder) follow(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case err != nil && probe.IsAgentFault(err): // it says nothing about the application: the port stays as it is
		h.server.report(h.port, fmt.Errorf("the agent cannot check the application: %w", err))
	case err != nil:
		h.note(false, err)
		h.close()
		h.server.report(h.port, nil)
	default:
		h.note(true, nil)
		h.server.report(h.port, h.listen(ctx))
	}
}

// note logs a verdict that has changed.
func (h *holder) note(open bool, err error) {
	if h.asked && h.open == open {
		return
	}
	h.asked, h.open = true, open
	if open {
		h.logger.Info("probe verdict", "probe", "tcpSocket", "verdict", "success")
	} else {
		h.logger.Warn("probe verdict", "probe", "tcpSocket", "verdict", "failure", "err", err)
	}
}

// listen opens the port, unless it is open.
func (h *holder) listen(ctx context.Context) error {
	if h.listener != nil {
		return nil
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", h.port.Address.String())
	if err != nil {
		return err
	}
	h.listener = l
	h.running.Go(func() { h.accept(ctx, l) })
	return nil
}

// close closes the port. Connections that are open stay so: what they ask is for Envoy to answer.
func (h *holder) close() {
	if h.listener != nil {
		_ = h.listener.Close() // the port is closed in any case
		h.listener = nil
	}
}

// end closes the port and waits for its connections, which end with the context of run.
func (h *holder) end() {
	h.close()
	h.running.Wait()
}

func (h *holder) accept(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		if v := h.visitors.add(c.(*net.TCPConn)); v != nil {
			h.running.Go(func() { h.serve(ctx, v) })
		}
	}
}
