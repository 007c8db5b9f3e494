// Package dpagent is the agent beside each Envoy: it joins the mesh, runs Envoy with the identity that it gets, keeps a
// session with the control plane, answers the probes of the pod, and drains at the end.
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
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
	"github.com/sonde-mesh/sonde/dpagent/session"
	"github.com/sonde-mesh/sonde/dpagent/token"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/internal/run"
)

// drainNoticeTimeout is how long the control plane may take to record a drain, before the drain begins without it.
const drainNoticeTimeout = 2 * time.Second

// Agent runs beside one Envoy.
type Agent struct {
	o       Options
	logger  *slog.Logger
	metrics *prometheus.Registry
	path    string // of the Envoy binary

	dir      *workdir.Dir
	identity *identity.Identity
	// servingCA is by which CAs the control plane is verified, by the client and by Envoy.
	servingCA *identity.ServingCA
	client    *controlplane.Client
	token     *token.File
	version   atomic.Pointer[agentv1.Version]

	checks  *health.Registry
	joinErr atomic.Pointer[error] // why the agent has not joined yet
	// inboundsErr says why Envoy has not accepted all inbound listeners.
	inboundsErr atomic.Pointer[error]
	// endpointsErr says why other proxies may not know that the endpoints of this one are ready.
	endpointsErr atomic.Pointer[error]
	// outboundsErr says why Envoy has not accepted all listeners at which the application calls others.
	outboundsErr atomic.Pointer[error]
	settled      chan struct{} // closed when it is known whether this agent goes on where another one has died
	instance     string        // tells this process from another one of its proxy
	started      time.Time     // of this process
	duplicates   duplicates
	rejoins      retry.Reporter // of the renewer: why it has to join again

	probes  *probe.Handler // nil if there are no probes to answer
	perPort *perport.Server
	// liveness holds failures of guarded liveness probes back, nil if there are none.
	liveness *held.Liveness
	failures *session.Failures
	// serviceProbes ask the applications, and readiness is what they have found.
	serviceProbes *serviceprobe.Server
	readiness     *session.Readiness
	envoyState    *session.EnvoyState
	plaintext     *plaintext.Counter
	// inbounds are those that can take traffic if the check of their application passes. Nil: another one may, whatever they answer.
	inbounds atomic.Pointer[[]netip.AddrPort]
	lb       *lb.Server // nil if no load balancer asks
	// told is what was stored last of what the control plane has said, by file.
	told   map[string][]byte
	toldMu sync.Mutex // of told, and of what is stored
	loops  loops
	limits limits
	places descriptors.Shares

	queries    chan *agentv1.Query
	draining   chan struct{} // closed by Drain
	startDrain func()
	deleted    chan struct{} // closed when the control plane says that the pod is being deleted
	setDeleted func()
}

// New returns an agent that does not run yet. It returns an error if an option or the probe table is wrong, or if there is
// no Envoy binary.
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
		queries: make(chan *agentv1.Query, 4), draining: make(chan struct{}), deleted: make(chan struct{}), settled: make(chan struct{}),
		failures: session.NewFailures(), readiness: session.NewReadiness(), envoyState: session.NewEnvoyState(), told: map[string][]byte{}, limits: l,
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

// setEnvoyVersion returns whether the version is another than before. One that is not supported is only a warning: it may be
// a build of the operator's own, and may work.
func (a *Agent) setEnvoyVersion(version string) bool {
	before := a.version.Load()
	if before.GetEnvoy() == version {
		return false
	}
	a.version.Store(&agentv1.Version{Sonde: a.o.Version, Envoy: version})
	if !mesh.SupportsEnvoy(version) {
		a.logger.Warn("this version of Envoy is not supported", "envoyVersion", version, "supported", mesh.SupportedEnvoys(), "path", a.path)
	}
	return true
}

// Drain starts to drain: Run then returns when no request or connection is open any more, at the latest after the drain
// time. It returns at once.
func (a *Agent) Drain() { a.startDrain() }

// Run runs the agent until ctx ends, or until a drain is complete. Envoy has ended when it returns.
func (a *Agent) Run(ctx context.Context) (err error) {
	if a.dir, err = workdir.Open(a.o.WorkDir); err != nil {
		return &mesh.FieldError{Field: "WorkDir", Value: a.o.WorkDir, Err: err}
	}
	defer func() { err = errors.Join(err, a.dir.Close()) }()
	a.identity = identity.New(a.dir, a.o.Mesh, a.o.Name)
	a.servingCA = identity.NewServingCA(identity.ServingCAOptions{
		Files: a.dir, Given: a.o.CAFile, ControlPlane: a.o.ControlPlane, Logger: a.logger, Registerer: a.metrics,
	})
	a.client = &controlplane.Client{Address: a.o.ControlPlane, Roots: a.servingCA.Roots, Certificate: a.identity.Certificate, Dial: a.o.dialControlPlane()}
	proxy := a.newEnvoy()
	a.perPort = perport.New(perport.Options{Logger: a.logger, Registerer: a.metrics, Virtual: a.virtualPort(), Connections: a.places[usesProbePorts] / 2, Loop: a.loops.perPort})
	a.serviceProbes = serviceprobe.New(serviceprobe.Options{Reporter: a.readiness, Logger: a.logger, Registerer: a.metrics, Loop: a.loops.serviceProbes})
	a.plaintext = plaintext.New(plaintext.Options{Logger: a.logger, Registerer: a.metrics})
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
		a.plaintext.Run(ctx, proxy)
		return nil
	})
	group.Go(func() error {
		a.token.Watch(ctx)
		return nil
	})
	group.Go(func() error {
		defer cancel() // the end of the data plane is the end of the agent
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

// keepsEnvoy says whether Envoy goes on if this agent dies: another one comes, and finds it in the same directory.
func (a *Agent) keepsEnvoy() bool {
	_, guarded := worker.Guarded()
	return guarded && a.probes != nil && a.o.WorkDir != ""
}

// runDataPlane joins the mesh, runs Envoy, the session and the renewal of the certificate, and drains when Drain is called.
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

// beginDrain has Envoy tell clients to go elsewhere as soon as the pod is being deleted: the hook of the kubelet, which does the same, starts a
// process first, and an application may be gone by then.
func (a *Agent) beginDrain(ctx context.Context, proxy *envoy.Envoy) {
	select {
	case <-ctx.Done():
		return
	case <-a.deleted:
	}
	ctx, cancel := context.WithTimeout(ctx, drain.BeginTimeout)
	defer cancel()
	if err := drain.Begin(ctx, proxy, a.logger); err != nil {
		a.logger.Warn("clients are not told that the pod is being deleted", "err", err)
	}
}

// quietTime is how long nothing must be open before a drain closes the listeners: clients that do not know of the drain yet may
// still connect.
func (a *Agent) quietTime() time.Duration {
	if a.o.LastToEnd {
		return 0
	}
	return time.Second
}

// drainProxy tells the control plane, serves on until load balancers know, and drains Envoy, at most for the drain time. Errors are only
// logged, since the agent ends in any case.
func (a *Agent) drainProxy(ctx context.Context, proxy *envoy.Envoy, sess *session.Session) {
	started := time.Now()
	until := a.servesUntil(started)
	ctx, cancel := context.WithDeadline(ctx, until.Add(a.o.DrainTime))
	defer cancel()
	a.logger.Info("drain begins", "limit", a.o.DrainTime, "servesOn", until.Sub(started))
	told, done := context.WithTimeout(ctx, drainNoticeTimeout)
	defer done()
	if err := sess.Drain(told); err != nil {
		a.logger.Warn("drain notice not acknowledged by the control plane", "err", err)
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

// ignoreContextError returns nil if err only says that ctx has ended.
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
		// After all ports that may be taken: a guard that has the probes tries for ever, and no container ends that would say why. Before the agent says
		// that it is ready: then other containers start and are probed.
		err = a.serveProbes(ctx, group)
	}
	if err != nil {
		return errors.Join(err, admin.Close(), own.Close(), records.Close())
	}
	a.logger.Info("metrics and health", "address", admin.Addr().String())
	group.Go(func() error {
		a.checks.Watch(ctx, a.settled) // it joins after that, which may take as long as the control plane is away
		return nil
	})
	handler := health.Handler(a.checks, page.Local())
	group.Go(func() error {
		return health.ServeLimited(ctx, admin, handler, health.Limits{Connections: a.places[usesHealth]})
	})
	group.Go(func() error { return a.plaintext.Serve(ctx, records) })
	asked := readinessRequests{loop: a.loops.redirection}
	group.Go(func() error {
		return health.ServeLimited(ctx, own, a.whenSettled(asked.through(handler)), health.Limits{Connections: a.places[usesEnvoy]})
	})
	group.Go(func() error {
		asked.watch(ctx, proxy.Ready, a.failures.Add)
		return nil
	})
	return nil
}
