package dpagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health"
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

// setProbes takes what the control plane says of the probes of a Dataplane that somebody has written. It holds while there is no
// session.
func (a *Agent) setProbes(m *agentv1.Probes) {
	c, err := perPortConfig(m)
	if err != nil {
		a.logger.Error("probes that the control plane names are ignored, those before stay", "err", err)
		return
	}
	a.perPort.Set(c)
}

func perPortConfig(m *agentv1.Probes) (perport.Config, error) {
	var c perport.Config
	var errs []error
	parse := func(field, address string) netip.AddrPort {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			errs = append(errs, &mesh.FieldError{Field: field, Value: address, Allowed: "must be ip:port"})
		}
		return at
	}
	if m.GetHttp() != "" {
		c.HTTP = parse("http", m.GetHttp())
	}
	for i, p := range m.GetPorts() {
		field := fmt.Sprintf("ports[%d].", i)
		c.Ports = append(c.Ports, perport.Port{
			Address: parse(field+"address", p.GetAddress()), Application: parse(field+"application", p.GetApplication()), GRPC: p.GetGrpc(),
		})
	}
	return c, errors.Join(errs...)
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
	var at net.Addr = net.TCPAddrFromAddrPort(a.probes.Address())
	if a.o.Probes.Mode == mesh.ProbesPerPort {
		at = a.dir.Socket(mesh.SocketProbes)
	}
	l, err := ListenProbes(ctx, a.probes, at.String())
	if err != nil {
		return err
	}
	a.logger.Info("probes", "address", l.Addr().String())
	a.checks.Add(health.Livez, health.Check{Name: "probe-handler", Run: func(ctx context.Context) error { return probe.Answers(ctx, at) }})
	group.Go(func() error { return a.probes.Serve(ctx, l) })
	return nil
}

// ListenProbes opens the virtual port of h, host:port, or the path of the Unix socket for Envoy, through the guard if there is one.
func ListenProbes(ctx context.Context, h *probe.Handler, address string) (net.Listener, error) {
	o := worker.Options{Address: address, MaxHead: h.MaxRequest()}
	for _, p := range h.Table() {
		o.Probes = append(o.Probes, wire.Limit{
			ID: p.ID, Timeout: time.Duration(p.TimeoutSeconds) * time.Second, Hook: p.Type.IsHook(),
		})
	}
	l, err := worker.Listen(ctx, o)
	if err != nil {
		return nil, &mesh.FieldError{
			Field: "Port", Value: address, Err: fmt.Errorf("open it at $%s: %w", mesh.EnvInstanceIP, err),
		}
	}
	return l, nil
}
