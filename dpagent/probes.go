package dpagent

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/dpagent/guard"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// newProbes makes the handler of the virtual port, nil where there is nothing to answer: then the port stays closed.
func (a *Agent) newProbes() (*probe.Handler, error) {
	needed, err := a.o.Probes.Needed()
	if err != nil || !needed {
		return nil, err
	}
	o, err := a.o.Probes.Options(a.logger)
	if err != nil {
		return nil, err
	}
	o.Registerer = a.metrics
	return probe.New(o)
}

// serveProbes answers from the start of the agent to its end: probes go on while it joins and while it drains.
func (a *Agent) serveProbes(ctx context.Context, group *errgroup.Group) error {
	if a.probes == nil {
		return nil
	}
	l, err := ListenProbes(ctx, a.probes)
	if err != nil {
		return err
	}
	a.logger.Info("probes", "address", l.Addr().String())
	group.Go(func() error { return a.probes.Serve(ctx, l) })
	return nil
}

// ListenProbes opens the virtual port, through the guard if there is one.
func ListenProbes(ctx context.Context, h *probe.Handler) (net.Listener, error) {
	o := guard.Options{Address: h.Address().String(), MaxHead: h.MaxRequest()}
	for _, p := range h.Table() {
		o.Probes = append(o.Probes, guard.Probe{
			ID: p.ID, Timeout: time.Duration(p.TimeoutSeconds) * time.Second, Hook: p.Type.IsHook(),
		})
	}
	l, err := guard.Listen(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("--virtual-probes-port: %w", err)
	}
	return l, nil
}
