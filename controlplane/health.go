package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/pipeline"
)

// Limits of one round of a loop. A restart costs every proxy its stream, so the limits are far beyond the time that a
// large mesh or a slow disk needs: a slow loop is not a dead one. Nor does a restart help while the API server is slow:
// without one, a new mesh takes up to half a minute, so loops that send several requests between two beats have longer
// limits.
const (
	defaultLoopLimit = time.Minute
	requestsLimit    = 5 // factor for loops that send requests
)

// How long results are cached, for checks that call a server or compute.
const (
	keepDraining = 100 * time.Millisecond // load balancers must notice the end at once
	keepXDS      = 5 * time.Second
	keepWebhook  = 15 * time.Second
	keepServed   = 10 * time.Second
	keepClock    = 10 * time.Second
)

// askTimeout bounds how long a check waits for a server.
const askTimeout = 3 * time.Second

// healthPath is the path in old manifests that now means /readyz.
const healthPath = "/healthz"

// loops watch the stages of all control planes.
type loops struct {
	view, agents, authority, servingCA *heartbeat.Loop
}

// loop adds a loop that calls no server to livez.
func (cp *ControlPlane) loop(name string) *heartbeat.Loop {
	return cp.checks.Loop(name, cp.o.loopLimit)
}

// requestingLoop adds a loop that calls the API server to livez.
func (cp *ControlPlane) requestingLoop(name string) *heartbeat.Loop {
	return cp.checks.Loop(name, requestsLimit*cp.o.loopLimit)
}

// errStarting means that the stages do not exist yet.
var errStarting = errors.New("the control plane is starting")

// starting returns why the stages do not exist yet, nil if they do.
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

// ready adds a check to readyz that passes only once the stages exist.
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

// addChecks adds the readiness checks of all platforms. docs/guides/health.md explains each check.
func (cp *ControlPlane) addChecks() {
	cp.checks.Add(health.Readyz, health.Check{Name: "draining", Keep: keepDraining, Run: func(context.Context) error {
		select {
		case <-cp.draining:
			return errors.New("the control plane is stopping")
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
	cp.ready(health.Check{Name: "xds", Keep: keepXDS, Timeout: askTimeout, Run: func(ctx context.Context) error {
		return serving.Port{Certificate: cp.serving, Address: cp.listeners.agents.Addr(), Dial: cp.o.Dial,
			Own: cp.o.addresses}.Check(ctx)
	}})
	cp.ready(health.Check{Name: "ca", Run: func(context.Context) error { return cp.pipeline.CheckCAs() }})
	cp.ready(health.Check{Name: "clock", Keep: keepClock, Informational: true, Run: cp.checkClock})
	cp.ready(health.Check{Name: "meshes", Informational: true, Run: func(context.Context) error {
		return cp.pipeline.CheckRecords()
	}})
	served := &pipeline.ServedState{}
	cp.ready(health.Check{Name: "served-state", Keep: keepServed,
		Run: func(ctx context.Context) error { return served.Check(ctx, cp.pipeline) }})
	cp.ready(health.Check{Name: "store", Informational: true, Run: func(context.Context) error {
		since, err := cp.platform.lost()
		if err == nil {
			return nil
		}
		return fmt.Errorf("unreachable for %s, serving the last state: %w",
			cp.o.now().Sub(since).Round(time.Second), err)
	}})
	cp.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_store_staleness_seconds",
		Help: "Seconds since the connection to the API server was lost, or the directory of the store was last read; 0 while it is connected or readable.",
	}, cp.staleness))
}

// staleness returns the seconds since the source of objects was last connected or readable, 0 while it is.
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

// checkClock returns which certificates are not valid yet by this clock. Clients may have the right time, so the
// control plane keeps serving.
func (cp *ControlPlane) checkClock(ctx context.Context) error {
	err := errors.Join(identity.NotYetValid("the CA of the control plane", cp.serving.Signing().NotBefore, cp.o.now()),
		cp.authority.CheckClock())
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
	return health.Serve(ctx, cp.listeners.health, pages, health.Limits{Connections: cp.places[usesHealth]})
}
