package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/pipeline"
)

// Limits of a turn of a loop. A restart costs every proxy its stream, so they are far beyond what a large mesh or a slow disk takes: a
// slow loop is not a dead one. A restart mends no API server either: a new mesh in the fan-out takes up to half a minute without it, and
// loops that send several requests between two beats have more time than these.
const (
	defaultLoopLimit = time.Minute
	requestsLimit    = 5 // times as long
)

// How long results are good of checks that call a server, or compute.
const (
	keepDraining = 100 * time.Millisecond // load balancers are to learn of the end at once
	keepXDS      = 5 * time.Second
	keepWebhook  = 15 * time.Second
	keepServed   = 10 * time.Second
	keepClock    = 10 * time.Second
)

// askTimeout is how long checks wait for a server.
const askTimeout = 3 * time.Second

// healthPath is what old manifests ask instead of /readyz.
const healthPath = "/healthz"

// loops watch the stages that all control planes have.
type loops struct {
	view, agents, authority, servingCA *heartbeat.Loop
}

// loop adds a loop to livez that calls no server.
func (cp *ControlPlane) loop(name string) *heartbeat.Loop {
	return cp.checks.Loop(name, cp.o.loopLimit)
}

// requestingLoop adds a loop to livez that asks the API server.
func (cp *ControlPlane) requestingLoop(name string) *heartbeat.Loop {
	return cp.checks.Loop(name, requestsLimit*cp.o.loopLimit)
}

// errStarting says that the stages are being made.
var errStarting = errors.New("the control plane starts")

// starting returns why the stages are not there, nil if they are.
func (cp *ControlPlane) starting() error {
	select {
	case <-cp.joined:
		return nil
	default:
	}
	if why := cp.waiting.Load(); why != nil {
		return *why
	}
	return errStarting
}

// ready adds a check to readyz that needs the stages.
func (cp *ControlPlane) ready(c health.Check) {
	run := c.Run
	c.Run = func(ctx context.Context) error {
		if err := cp.starting(); err != nil {
			return err
		}
		return run(ctx)
	}
	cp.checks.Add(health.Readyz, c)
}

// addChecks adds what decides about readiness, besides what the platform adds. docs/guides/health.md explains each check.
func (cp *ControlPlane) addChecks() {
	cp.checks.Add(health.Readyz, health.Check{Name: "draining", Keep: keepDraining, Run: func(context.Context) error {
		select {
		case <-cp.draining:
			return errors.New("the control plane was asked to end")
		default:
			return nil
		}
	}})
	cp.ready(health.Check{Name: "synced", Run: func(context.Context) error { return cp.platform.missing() }})
	cp.ready(health.Check{Name: "view", Run: func(context.Context) error {
		if cp.pipeline.Builder.View() == nil {
			return errors.New("no view is built yet")
		}
		return nil
	}})
	cp.ready(health.Check{Name: "xds", Keep: keepXDS, Timeout: askTimeout, Run: cp.shakeHands})
	cp.ready(health.Check{Name: "ca", Run: cp.checkCAs})
	cp.ready(health.Check{Name: "clock", Keep: keepClock, Informational: true, Run: cp.checkClock})
	cp.ready(health.Check{Name: "meshes", Informational: true, Run: func(context.Context) error {
		return cp.pipeline.CheckRecords()
	}})
	served := &pipeline.ServedState{}
	cp.ready(health.Check{Name: "served-state", Keep: keepServed, Run: func(ctx context.Context) error { return served.Check(ctx, cp.pipeline) }})
	cp.ready(health.Check{Name: "store", Informational: true, Run: func(context.Context) error {
		since, err := cp.platform.lost()
		if err == nil {
			return nil
		}
		return fmt.Errorf("not heard for %s, what was read before is served: %w", cp.o.now().Sub(since).Round(time.Second), err)
	}})
	cp.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_store_staleness_seconds",
		Help: "Seconds since the API server was last heard, or the directory of the store last read; 0 while it is.",
	}, cp.staleness))
}

// staleness returns for how many seconds the store has not been heard.
func (cp *ControlPlane) staleness() float64 {
	since := cp.started
	switch err := cp.starting(); {
	case errors.Is(err, errStarting):
		return 0
	case err == nil:
		if since, err = cp.platform.lost(); err == nil {
			return 0
		}
	}
	return cp.o.now().Sub(since).Seconds()
}

// shakeHands shakes hands with the port for agents, over each family of addresses by which agents come.
func (cp *ControlPlane) shakeHands(ctx context.Context) error {
	at, err := cp.reachedAt(cp.listeners.agents.Addr())
	if err != nil {
		return err
	}
	for _, address := range at {
		if err := cp.shakeHandsAt(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

// reachedAt returns addresses of this host that stand for that of a listener: one of each family in which the host has an address that
// others can reach, or the listener's own.
func (cp *ControlPlane) reachedAt(listener net.Addr) ([]string, error) {
	at, ok := listener.(*net.TCPAddr)
	if !ok || !at.IP.IsUnspecified() || at.IP.To4() != nil {
		return []string{listener.String()}, nil
	}
	addresses, err := cp.o.addresses()
	if err != nil {
		return nil, fmt.Errorf("look for the addresses of this host: %w", err)
	}
	var four, six bool
	for _, a := range addresses {
		if prefix, ok := a.(*net.IPNet); ok && prefix.IP.IsGlobalUnicast() {
			four, six = four || prefix.IP.To4() != nil, six || prefix.IP.To4() == nil
		}
	}
	var all []string
	port := strconv.Itoa(at.Port)
	if four {
		all = append(all, net.JoinHostPort("127.0.0.1", port))
	}
	if six {
		all = append(all, net.JoinHostPort("::1", port))
	}
	if len(all) == 0 {
		all = []string{listener.String()}
	}
	return all, nil
}

// shakeHandsAt opens a connection as an agent does that has no certificate yet, and waits for what the server sends once it serves it.
func (cp *ControlPlane) shakeHandsAt(ctx context.Context, address string) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cp.serving.CA())
	raw, err := cp.o.Dial(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect as an agent: %w", err)
	}
	conn := tls.Client(raw, &tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		Time: func() time.Time { return ca.TimeFor(cp.o.now(), cp.serving.Signing()) }, // checkClock says it: agents go by their own clocks
	})
	defer func() { _ = conn.Close() }()
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("connect as an agent: %w", err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return fmt.Errorf("connect as an agent: %w", err)
		}
	}
	frame, err := http2.NewFramer(io.Discard, conn).ReadFrame()
	if err != nil {
		return fmt.Errorf("wait for the first frame of HTTP/2 as an agent: %w", err)
	}
	if _, ok := frame.(*http2.SettingsFrame); !ok {
		return fmt.Errorf("the first frame of HTTP/2 is %s, must be SETTINGS", frame.Header())
	}
	return nil
}

// checkCAs returns which meshes cannot issue certificates.
func (cp *ControlPlane) checkCAs(context.Context) error {
	view := cp.pipeline.Builder.View()
	if view == nil {
		return nil // no mesh is served yet
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(view.Meshes)) {
		switch expires := cp.authority.CAExpires(name); {
		case expires.IsZero():
			errs = append(errs, fmt.Errorf("mesh %q has no CA", name))
		case !cp.o.now().Before(expires):
			errs = append(errs, fmt.Errorf("the CA of mesh %q has expired at %s: rotate it", name, expires.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}

// checkClock returns which certificates are not valid yet by this clock. Others may have the right time, so the control plane serves on.
func (cp *ControlPlane) checkClock(ctx context.Context) error {
	err := errors.Join(identity.NotYetValid("the CA of the control plane", cp.serving.Signing().NotBefore, cp.o.now()), cp.authority.CheckClock())
	if err != nil && cp.clockWrong.CompareAndSwap(false, true) {
		cp.o.Logger.ErrorContext(ctx, "clock is wrong, certificates are not valid yet; accepting them", "err", err)
	}
	if err == nil {
		cp.clockWrong.Store(false)
	}
	return err
}

// serveHealth serves health and metrics.
func (cp *ControlPlane) serveHealth(ctx context.Context) error {
	pages := health.Handler(cp.checks, health.Metrics(cp.registry))
	pages.Handle(healthPath, health.Page(cp.checks, health.Readyz))
	return health.ServeLimited(ctx, cp.listeners.health, pages, health.Limits{Connections: cp.places[usesHealth]})
}

// healthChecks returns all checks for the admin API.
func (cp *ControlPlane) healthChecks(ctx context.Context) []*adminv1.HealthCheck {
	var all []*adminv1.HealthCheck
	for _, group := range []health.Group{health.Livez, health.Readyz} {
		for _, r := range cp.checks.Results(ctx, group) {
			all = append(all, healthCheck(&r))
		}
	}
	return all
}
