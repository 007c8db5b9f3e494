package perport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/run"
)

// String returns a description for messages.
func (p Port) String() string {
	if p.AlwaysOpen {
		return fmt.Sprintf("gRPC probes on %s", p.Address)
	}
	return fmt.Sprintf("TCP probes on %s", p.Address)
}

// run probes the application once per period, and keeps the port open while the application accepts connections.
func (p Port) run(ctx context.Context, s *Server) {
	h, err := newHolder(p, s)
	if err != nil {
		s.report(p, err)
		<-ctx.Done()
		return
	}
	defer h.end()
	for range run.Every(ctx, period) {
		h.follow(ctx, h.check(ctx))
	}
}

// holder holds one port.
type holder struct {
	port   Port
	server *Server
	logger *slog.Logger
	check  func(context.Context) error
	grpc   *probe.TargetServer // nil unless port.GRPC
	serve  func(context.Context, net.Listener)

	listener net.Listener // nil while the port is closed
	asked    bool         // the application has been probed
	open     bool         // the application accepted the last connection
	running  sync.WaitGroup
}

func newHolder(p Port, s *Server) (*holder, error) {
	h := &holder{
		port: p, server: s, serve: (&visitors{max: maxVisitors}).serve, check: func(context.Context) error { return nil },
		logger: s.o.Logger.With("address", p.Address.String(), "application", p.Application.String()),
	}
	var err error
	if !p.AlwaysOpen {
		if h.check, err = probe.NewTCPCheck(p.Application, period, s.o.Dial, s.o.Registerer); err != nil {
			return nil, err
		}
	}
	if p.GRPC {
		if h.grpc, err = probe.NewTargetServer(probe.Target{Asked: p.Asked, Application: p.Application}, s.o.Dial,
			s.o.Registerer); err != nil {
			return nil, err
		}
		h.serve = func(_ context.Context, l net.Listener) { _ = h.grpc.Serve(l) } // until it is closed
	}
	return h, nil
}

// follow opens or closes the port to match the application's port: err is nil if the application has accepted a
// connection.
func (h *holder) follow(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, probe.ErrLate): // unknown: keep the port as it is until the next check
	case err != nil && probe.IsAgentFault(err): // unknown: keep the port as it is
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

// note logs a changed verdict.
func (h *holder) note(open bool, err error) {
	if h.port.AlwaysOpen || h.asked && h.open == open {
		return
	}
	h.asked, h.open = true, open
	if open {
		h.logger.Info("probe verdict", "probe", "tcpSocket", "verdict", "success")
	} else {
		h.logger.Warn("probe verdict", "probe", "tcpSocket", "verdict", "failure", "err", err)
	}
}

var errVirtualPort = errors.New("is the virtual port, on which the agent answers HTTP probes of its table")

// listen opens the port, unless it is open.
func (h *holder) listen(ctx context.Context) error {
	if h.listener != nil {
		return nil
	}
	if h.port.Address == h.server.o.Virtual {
		return errVirtualPort
	}
	l, err := h.server.o.Listen(ctx, "tcp", h.port.Address.String())
	if err != nil {
		return err
	}
	h.listener = l
	h.running.Go(func() { h.serve(ctx, l) })
	return nil
}

// close closes the port. Open connections stay, since a gRPC call may still be answered.
func (h *holder) close() {
	if h.listener != nil {
		_ = h.listener.Close() // the port is closed in any case
		h.listener = nil
	}
}

// end closes the port, and waits for its connections, which end with the context of run, or with the server.
func (h *holder) end() {
	h.close()
	if h.grpc != nil {
		h.grpc.Close()
	}
	h.running.Wait()
}
