package dpagent

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// newProbes returns the handler of the virtual port, nil if there are no probes: then the port stays closed.
func (a *Agent) newProbes() (*probe.Handler, error) {
	needed, err := a.o.Probes.Needed()
	if err != nil || !needed {
		return nil, err
	}
	o, err := a.o.Probes.Options(a.logger)
	if err != nil {
		return nil, err
	}
	o.Registerer, o.Failed = a.metrics, a.failures.Add
	a.countStarts()
	return probe.New(o)
}

// countStarts registers a metric with the number of times that the guard has started this agent: nothing else shows that
// the agent has died.
func (a *Agent) countStarts() {
	starts, ok := worker.Guarded()
	if !ok {
		return
	}
	counter := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_dpagent_worker_starts_total", Help: "How often the agent was started in this container: more than 1 if it died.",
	})
	counter.Add(float64(starts))
	a.metrics.MustRegister(counter)
}

// serveProbes opens the virtual port and serves it in group until ctx ends. So probes are answered from the start of the
// agent to its end, also while it joins and while it drains.
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

// ListenProbes opens the virtual port of h, through the guard if there is one.
func ListenProbes(ctx context.Context, h *probe.Handler) (net.Listener, error) {
	o := worker.Options{Address: h.Address().String(), MaxHead: h.MaxRequest()}
	for _, p := range h.Table() {
		o.Probes = append(o.Probes, wire.Limit{
			ID: p.ID, Timeout: time.Duration(p.TimeoutSeconds) * time.Second, Hook: p.Type.IsHook(),
		})
	}
	l, err := worker.Listen(ctx, o)
	if err != nil {
		return nil, &mesh.FieldError{
			Field: "Port", Value: h.Address().String(), Err: fmt.Errorf("open it at $%s: %w", mesh.EnvInstanceIP, err),
		}
	}
	return l, nil
}
