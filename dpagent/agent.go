// Package dpagent is the agent beside each Envoy: it joins the mesh, runs Envoy with the issued identity, keeps a
// session with the control plane, answers the probes of the pod, and drains Envoy before it exits.
package dpagent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/controlplane"
	"github.com/sonde-mesh/sonde/dpagent/drain"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
	"github.com/sonde-mesh/sonde/dpagent/held"
	"github.com/sonde-mesh/sonde/dpagent/identity"
	"github.com/sonde-mesh/sonde/dpagent/lb"
	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/plaintext"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/refused"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/dpagent/token"
	"github.com/sonde-mesh/sonde/dpagent/verdicts"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/internal/run"
)

// drainNoticeTimeout bounds the wait for the control plane to record a drain, before the drain begins without it.
const drainNoticeTimeout = 2 * time.Second

// Agent runs beside one Envoy.
type Agent struct {
	o       Options
	logger  *slog.Logger
	metrics *prometheus.Registry
	path    string // path of the Envoy binary

	dir      *workdir.Dir
	identity *identity.Identity
	// servingCA has the CAs with which the client and Envoy verify the control plane.
	servingCA *identity.ServingCA
	client    *controlplane.Client
	token     *token.File
	version   atomic.Pointer[agentv1.Version]

	checks  *health.Registry
	joinErr atomic.Pointer[error] // why the agent has not joined yet
	// inboundsErr says why Envoy has not accepted all inbound listeners.
	inboundsErr atomic.Pointer[error]
	// endpointsErr says why other proxies may not treat this proxy's endpoints as ready.
	endpointsErr atomic.Pointer[error]
	// outboundsErr says why Envoy has not accepted all listeners for outbound calls.
	outboundsErr atomic.Pointer[error]
	settled      chan struct{} // closed once it is known whether this agent resumes a previous one
	instance     string        // distinguishes this process from other agents of its proxy
	started      time.Time     // start of this process
	duplicates   duplicates
	rejoins      retry.Reporter // reports why the renewer has to join again

	probes  *probe.Handler // nil if there are no probes to answer
	perPort *perport.Server
	// liveness holds back failures of guarded liveness probes. It is nil if the pod has none.
	liveness *held.Liveness
	failures *session.Failures
	// serviceProbes probes the applications; readiness holds the results.
	serviceProbes *serviceprobe.Server
	readiness     *session.Readiness
	verdicts      *verdicts.History // of all probes
	envoyState    *session.EnvoyState
	plaintext     *plaintext.Counter
	refused       *refused.Counter
	// inbounds are the inbounds that can take traffic if their application's check passes. Nil means that at least one
	// inbound can take traffic whatever the results.
	inbounds atomic.Pointer[[]netip.AddrPort]
	lb       *lb.Server // nil if no port for load balancers is configured
	// told holds the last stored messages of the control plane, by file name.
	told   map[string][]byte
	toldMu sync.Mutex // guards told, and the stored files
	loops  loops
	limits limits
	places descriptors.Shares

	queries    chan *agentv1.Query
	draining   chan struct{} // closed by Drain
	startDrain func()
	deleted    chan struct{} // closed when the control plane reports that the pod is being deleted
	setDeleted func()
}

// New returns an agent that does not run yet. It returns an error if an option or the probe table is invalid, or if no
// Envoy binary is found.
func New(ctx context.Context, o Options, logger *slog.Logger) (*Agent, error) {
	return newAgent(ctx, o, logger, limits{})
}

func newAgent(ctx context.Context, o Options, logger *slog.Logger, l limits) (*Agent, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	a := &Agent{
		o: o, logger: logger.With("mesh", o.Mesh, "proxy", o.Name),
		metrics: prometheus.NewRegistry(), instance: rand.Text(), started: time.Now(),
		queries: make(chan *agentv1.Query, 4), draining: make(chan struct{}), deleted: make(chan struct{}),
		settled:  make(chan struct{}),
		failures: session.NewFailures(), readiness: session.NewReadiness(), envoyState: session.NewEnvoyState(),
		told: map[string][]byte{}, limits: l,
	}
	a.metrics.MustRegister(buildinfo.Metric())
	var err error
	if a.places, err = o.shareDescriptors(a.logger); err != nil {
		return nil, err
	}
	a.rejoins.Logger, a.duplicates.log = a.logger, a.logger
	a.checks = health.New(health.Options{Logger: a.logger, Registerer: a.metrics, OwnAddress: localpeer.Is})
	unknown := errInboundsUnknown
	a.inboundsErr.Store(&unknown)
	a.setEndpoints(errEndpointsUnknown)
	a.setOutbounds(errOutboundsUnknown)
	a.lb = a.newLB()
	a.loops = a.newLoops()
	a.setDeleted = sync.OnceFunc(func() { close(a.deleted) })
	a.startDrain = sync.OnceFunc(func() {
		if a.lb != nil {
			a.lb.End()
		}
		close(a.draining)
	})
	a.token = token.New(o.TokenFile, a.logger, a.metrics, a.loops.token)
	if a.probes, err = a.newProbes(); err != nil {
		return nil, err
	}
	path, version, err := envoy.Find(ctx, o.Launcher, o.EnvoyPath)
	if err != nil {
		return nil, &mesh.FieldError{Field: "EnvoyPath", Value: o.EnvoyPath, Err: err}
	}
	a.path = path
	a.setEnvoyVersion(version)
	return a, nil
}

// setEnvoyVersion reports whether the version has changed. It only warns about an unsupported version, which may be the
// operator's own working build.
func (a *Agent) setEnvoyVersion(version string) bool {
	before := a.version.Load()
	if before.GetEnvoy() == version {
		return false
	}
	a.version.Store(&agentv1.Version{Sonde: a.o.Version, Envoy: version})
	if !mesh.SupportsEnvoy(version) {
		a.logger.Warn("unsupported version of envoy", "envoyVersion", version, "supported", mesh.SupportedEnvoys(),
			"path", a.path)
	}
	return true
}

// Drain starts a drain and returns at once. Run then returns when no request or connection is open, at the latest after
// the drain time.
func (a *Agent) Drain() { a.startDrain() }

// Run runs the agent until ctx ends or a drain is complete. It returns after Envoy has exited.
func (a *Agent) Run(ctx context.Context) (err error) {
	if a.dir, err = workdir.Open(a.o.WorkDir); err != nil {
		return &mesh.FieldError{Field: "WorkDir", Value: a.o.WorkDir, Err: err}
	}
	defer func() { err = errors.Join(err, a.dir.Close()) }()
	a.identity = identity.New(a.dir, a.o.Mesh, a.o.Name)
	a.servingCA = identity.NewServingCA(identity.ServingCAOptions{
		Files: a.dir, Given: a.o.CAFile, ControlPlane: a.o.ControlPlane, Logger: a.logger, Registerer: a.metrics,
	})
	a.client = &controlplane.Client{Address: a.o.ControlPlane, Roots: a.servingCA.Roots,
		Certificate: a.identity.Certificate, Dial: a.o.dialControlPlane()}
	proxy := a.newEnvoy()
	a.perPort = perport.New(perport.Options{Logger: a.logger, Registerer: a.metrics, Virtual: a.virtualPort(),
		Connections: a.places[usesProbePorts] / 2, Loop: a.loops.perPort})
	a.serviceProbes = serviceprobe.New(serviceprobe.Options{Reporter: reporters{a.readiness, a.verdicts}, Logger: a.logger,
		Registerer: a.metrics, Loop: a.loops.serviceProbes})
	a.plaintext = plaintext.New(plaintext.Options{Logger: a.logger, Registerer: a.metrics})
	a.refused = refused.New(a.logger, a.metrics)
	a.addChecks(proxy)
	a.resumeTold()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	if err := a.serve(ctx, group, proxy); err != nil {
		cancel()
		return errors.Join(err, group.Wait())
	}
	group.Go(func() error { return a.perPort.Run(ctx) })
	group.Go(func() error { return a.serviceProbes.Run(ctx) })
	group.Go(func() error {
		a.verdicts.Run(ctx)
		return nil
	})
	group.Go(func() error {
		a.plaintext.Run(ctx, proxy)
		return nil
	})
	group.Go(func() error {
		a.refused.Run(ctx, proxy)
		return nil
	})
	group.Go(func() error {
		a.token.Watch(ctx)
		return nil
	})
	group.Go(func() error {
		defer cancel() // the agent ends with its data plane
		return a.runDataPlane(ctx, proxy)
	})
	return group.Wait()
}

func (a *Agent) newEnvoy() *envoy.Envoy {
	return envoy.New(envoy.Options{
		Path: a.path, Dir: a.dir, Restore: a.restoreSecrets, Concurrency: a.workers(), DrainTime: a.o.DrainTime,
		Logger: a.logger, Level: a.o.Level, Registerer: a.metrics, Keep: a.keepsEnvoy(),
		Changed: a.envoyState.Set, HangLimit: a.limits.hang, Launcher: a.o.Launcher, Dial: a.o.Dial,
	})
}

// keepsEnvoy reports whether Envoy keeps running if this agent dies, so that the next agent in this directory can adopt
// it.
func (a *Agent) keepsEnvoy() bool {
	_, guarded := worker.Guarded()
	return guarded && a.probes != nil && a.o.WorkDir != ""
}

// runDataPlane joins the mesh, then runs Envoy, the session and certificate renewal, and drains after a call of Drain.
// It returns nil after a drain, or if ctx ends.
func (a *Agent) runDataPlane(ctx context.Context, proxy *envoy.Envoy) error {
	resumed := a.resume(proxy)
	close(a.settled)
	if !resumed {
		if err := a.join(ctx); err != nil {
			if errors.Is(err, errDrained) {
				return nil // there is nothing to drain
			}
			return ignoreContextError(ctx, err)
		}
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	var renewer *identity.Renewer
	sess := a.newSession(func() { renewer.Now() })
	renewer = identity.NewRenewer(a.identity, identity.RenewerOptions{
		Ask: a.renew, Renewed: sess.Changed, Logger: a.logger, Registerer: a.metrics,
		Loop: a.loops.renewer,
	})
	group.Go(func() error {
		return proxy.Run(running, func(version string) {
			if a.setEnvoyVersion(version) {
				sess.Upgraded()
			}
		})
	})
	group.Go(func() error { return sess.Run(running) })
	group.Go(func() error {
		a.answerQueries(running, proxy)
		return nil
	})
	group.Go(func() error { return renewer.Run(running) })
	group.Go(func() error {
		a.beginDrain(running, proxy)
		return nil
	})
	group.Go(func() error {
		defer stop()
		select {
		case <-a.draining:
			a.drainProxy(running, proxy, sess)
		case <-running.Done():
		}
		return nil
	})
	return ignoreContextError(running, group.Wait())
}

// beginDrain makes Envoy send clients to other endpoints as soon as the pod is being deleted. The kubelet's hook does
// the same, but first starts a process, so the application may have exited by then.
func (a *Agent) beginDrain(ctx context.Context, proxy *envoy.Envoy) {
	select {
	case <-ctx.Done():
		return
	case <-a.deleted:
	}
	ctx, cancel := context.WithTimeout(ctx, drain.BeginTimeout)
	defer cancel()
	if err := drain.Begin(ctx, proxy, a.logger); err != nil {
		a.logger.Warn("failed to tell clients that the pod is being deleted", "err", err)
	}
}

// quietTime is how long the inbound must be idle before a drain closes the listeners. Until then, clients that have not
// noticed the drain may still connect.
func (a *Agent) quietTime() time.Duration {
	if a.o.LastToEnd {
		return 0
	}
	return time.Second
}

// drainProxy reports the drain to the control plane, keeps serving until load balancers have noticed, and drains Envoy
// for at most the drain time. It only logs errors, since the agent exits in any case.
func (a *Agent) drainProxy(ctx context.Context, proxy *envoy.Envoy, sess *session.Session) {
	started := time.Now()
	until := a.servesUntil(started)
	ctx, cancel := context.WithDeadline(ctx, until.Add(a.o.DrainTime))
	defer cancel()
	a.logger.Info("drain begins", "limit", a.o.DrainTime, "servesOn", until.Sub(started))
	told, done := context.WithTimeout(ctx, drainNoticeTimeout)
	defer done()
	if err := sess.Drain(told); err != nil {
		a.logger.Warn("control plane did not acknowledge the drain notice", "err", err)
	}
	if run.Sleep(ctx, time.Until(until)) != nil {
		return // the agent ends at once
	}
	if err := proxy.Running(); err != nil {
		a.logger.Info("nothing to drain", "err", err)
		return
	}
	if err := drain.Run(ctx, proxy, a.quietTime(), a.logger); err != nil {
		a.logger.Warn("drain cut short", "err", err, "took", time.Since(started))
		return
	}
	a.logger.Info("drain done", "took", time.Since(started))
}

// ignoreContextError returns nil if err only reports the end of ctx.
func ignoreContextError(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (a *Agent) serve(ctx context.Context, group *errgroup.Group, proxy *envoy.Envoy) error {
	admin, err := a.o.Listen(ctx, "tcp", a.o.AdminAddress)
	if err != nil {
		at := mesh.FieldError{Field: "AdminAddress", Value: a.o.AdminAddress, Allowed: mesh.AllowedOwnOrNoHost}
		return mesh.ListenError(at, at, err)
	}
	own, err := a.o.Listen(ctx, "unix", a.dir.Socket(mesh.SocketAgent).Name)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for envoy: %w", err), admin.Close())
	}
	records, err := a.o.Listen(ctx, "unix", a.dir.Socket(mesh.SocketRecords).Name)
	if err != nil {
		return errors.Join(fmt.Errorf("listen for envoy's access log: %w", err), admin.Close(), own.Close())
	}
	page := scrape.NewPage(a.metrics, proxy)
	err = errors.Join(a.serveLB(ctx, group, proxy), a.serveMetrics(ctx, group, page))
	if err == nil {
		// Open the ports for probes last: once they are open, a guard restarts an agent that exits, so the container would
		// not exit with the reason if another process uses one of the other ports. Open them before the agent reports ready,
		// since other containers then start and are probed.
		err = a.serveProbes(ctx, group)
	}
	if err != nil {
		return errors.Join(err, admin.Close(), own.Close(), records.Close())
	}
	a.logger.Info("metrics and health", "address", admin.Addr().String())
	group.Go(func() error {
		a.checks.Watch(ctx, a.settled) // joining may wait until the control plane is reachable
		return nil
	})
	handler := health.Handler(a.checks, page.Local())
	group.Go(func() error {
		return health.Serve(ctx, admin, handler, health.Limits{Connections: a.places[usesHealth]})
	})
	group.Go(func() error { return a.plaintext.Serve(ctx, records) })
	asked := readinessRequests{loop: a.loops.redirection}
	group.Go(func() error {
		return health.Serve(ctx, own, a.whenSettled(asked.through(handler)), health.Limits{Connections: a.places[usesEnvoy]})
	})
	group.Go(func() error {
		asked.watch(ctx, proxy.Ready, a.failures.Add)
		return nil
	})
	return nil
}
