package dpagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/held"
	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/verdicts"
	"github.com/sonde-mesh/sonde/health"
)

// newProbes returns the handler of the virtual port, or nil if there are no probes; the port then stays closed.
func (a *Agent) newProbes() (*probe.Handler, error) {
	a.verdicts = verdicts.New(nil)
	needed, err := a.o.Probes.Needed()
	if err != nil || !needed {
		return nil, err
	}
	o, err := a.o.Probes.Options(a.logger)
	if err != nil {
		return nil, err
	}
	a.verdicts = verdicts.New(o.Table)
	o.Registerer, o.Failed, o.Checked = a.metrics, a.failures.Add, a.verdicts.Checked
	o.Connections = probeConnections(a.places[usesProbes])
	o.Target = func(path string) (probe.Target, bool) { return a.perPort.TargetAt(a.virtualPort(), path) }
	if slices.ContainsFunc(o.Table, func(p mesh.Probe) bool { return p.Guarded }) {
		a.liveness = held.New(held.Options{Keep: func(m *agentv1.Restarts) { a.storeTold(fileRestarts, m) }, Logger: a.logger,
			Registerer: a.metrics})
		o.Guarded = a.liveness
	}
	if slices.ContainsFunc(o.Table, func(p mesh.Probe) bool { return p.Exec != nil }) {
		if err := copyProgram(mesh.ExecProgram, mesh.ExecHelperDir); err != nil {
			a.logger.Error("failed to copy the helper for exec probes, keeping the previous one", "err", err)
		}
	}
	a.countStarts()
	return probe.New(o)
}

// virtualPort returns the address that answers the table's HTTP probes; it is invalid if there is no table.
func (a *Agent) virtualPort() netip.AddrPort {
	if a.probes == nil {
		return netip.AddrPort{}
	}
	return a.probes.Address()
}

// setProbes applies the control plane's probes of a written Dataplane. They stay in effect without a session, and for
// the next agent if this one dies.
func (a *Agent) setProbes(m *agentv1.Probes) {
	c, err := perPortConfig(m)
	if err != nil {
		a.logger.Error("invalid probes from the control plane, keeping the previous ones", "err", err)
		return
	}
	a.storeTold(fileProbes, m) // before answering: the next agent should answer the same probes
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
	c.Paths = make(map[string]probe.Target, len(m.GetPaths()))
	for i, p := range m.GetPaths() {
		field := fmt.Sprintf("paths[%d].", i)
		c.Paths[p.GetPath()] = probe.Target{
			Asked: parse(field+"asked", p.GetAsked()), Application: parse(field+"application", p.GetApplication()),
			Path: p.GetApplicationPath(),
		}
	}
	for i, p := range m.GetPorts() {
		field := fmt.Sprintf("ports[%d].", i)
		port := perport.Port{
			Address: parse(field+"address", p.GetAddress()), Application: parse(field+"application", p.GetApplication()),
			GRPC: p.GetGrpc(), AlwaysOpen: p.GetAlwaysOpen(),
		}
		if port.GRPC {
			port.Asked = parse(field+"asked", p.GetAsked())
		}
		c.Ports = append(c.Ports, port)
	}
	return c, errors.Join(errs...)
}

// setRestarts applies the control plane's state of guarded liveness probes; m is nil if the control plane is too old to
// send it. The state stays in effect without a session, and for the next agent if this one dies.
func (a *Agent) setRestarts(m *agentv1.Restarts) {
	a.setHold(m.GetHold())
	switch {
	case a.liveness != nil:
		a.liveness.Told(m)
	case m != nil:
		a.storeTold(fileRestarts, m)
	}
}

// setHold sets how failures are held back. An unspecified value changes nothing.
func (a *Agent) setHold(h agentv1.Restarts_Hold) {
	hold := map[agentv1.Restarts_Hold]mesh.LivenessHold{agentv1.Restarts_ERRORED: mesh.HoldErrored,
		agentv1.Restarts_WARNING: mesh.HoldWarning}[h]
	if hold == "" || (hold == mesh.HoldWarning) == a.probes.Warns() {
		return
	}
	a.probes.SetHold(hold)
	worker.SetWarns(a.probes.Warns())
	a.logger.Info("changed how failures of liveness probes are held back", "hold", hold)
}

// countStarts registers a metric with the number of times that the guard has started this agent. No other metric shows
// that the agent has died.
func (a *Agent) countStarts() {
	starts, ok := worker.Guarded()
	if !ok {
		return
	}
	counter := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_dpagent_worker_starts_total",
		Help: "Number of starts of the agent in this container: more than 1 if it died.",
	})
	counter.Add(float64(starts))
	a.metrics.MustRegister(counter)
}

// serveProbes opens the ports for probes and serves them in group until ctx ends: from the agent's start to its end,
// including joining and draining.
func (a *Agent) serveProbes(ctx context.Context, group *errgroup.Group) error {
	if a.probes == nil {
		return nil
	}
	all, err := ListenProbes(ctx, a.probes)
	if err != nil {
		return err
	}
	for _, l := range all {
		a.logger.Info("probes", "address", l.Addr().String())
	}
	if at := a.probes.Address(); at.Port() != 0 {
		a.checks.Add(health.Livez, health.Check{Name: "probe-handler", Run: func(ctx context.Context) error {
			return probe.Answers(ctx, at, nil)
		}})
	}
	group.Go(func() error { return a.probes.Serve(ctx, all...) })
	return nil
}

// ListenProbes opens the ports of h, through the guard if there is one.
func ListenProbes(ctx context.Context, h *probe.Handler) ([]net.Listener, error) {
	o := worker.Options{Warns: h.Warns()}
	for _, p := range h.Ports() {
		o.Ports = append(o.Ports, wire.Port{Address: p.Address.String(), MaxHead: p.MaxHead, GRPC: p.GRPC,
			Timeout: p.Timeout})
	}
	for _, p := range h.Table() {
		o.Probes = append(o.Probes, wire.Limit{
			ID: p.ID, Timeout: probe.Longest(p), Hook: p.Type.IsHook(),
			Liveness: p.Type == mesh.ProbeLiveness,
		})
	}
	all, err := worker.Listen(ctx, o)
	if err != nil {
		ip := mesh.FieldError{Field: mesh.EnvInstanceIP, Value: h.Address().Addr().String(),
			Allowed: "must be an IP address of this machine"}
		port := mesh.FieldError{Field: "Port", Value: strconv.Itoa(int(h.Address().Port()))}
		return nil, mesh.ListenError(ip, port, fmt.Errorf("open the ports for probes at $%s: %w", mesh.EnvInstanceIP, err))
	}
	return all, nil
}
