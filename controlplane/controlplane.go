// Package controlplane connects the stages of the control plane: a ControlPlane is the whole program.
package controlplane

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/pipeline"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/xds"
)

// ControlPlane has all stages, see the picture in docs/architecture.md.
type ControlPlane struct {
	o        Options
	started  time.Time
	registry *prometheus.Registry
	checks   *health.Registry
	loops    loops
	places   descriptors.Shares

	platform    platform
	connection  connection
	authority   *identity.Authority
	serving     *serving.Certificate
	credentials *mtls.Credentials
	tokens      *token.Issuer
	adminToken  string

	pipeline *pipeline.Pipeline
	peers    *replicas.Peers // nil without replicas
	agents   *agents.Server
	admin    *admin.Server

	listeners listeners
	joined    chan struct{}         // closed when join has created the stages
	waiting   atomic.Pointer[error] // why join has not created the stages, nil if unknown
	draining  chan struct{}         // closed when Run begins to end

	clockWrong atomic.Bool // the wrong clock has been logged
}

// New returns a control plane. With a directory of files it claims the state directory until Run returns, so the caller
// must call Run. It returns the errors of Options.Validate.
func New(o Options) (*ControlPlane, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	cp := &ControlPlane{
		o: o, started: o.now(), registry: prometheus.NewRegistry(), joined: make(chan struct{}),
		draining: make(chan struct{}),
	}
	var err error
	if cp.places, err = cp.o.shareDescriptors(); err != nil {
		return nil, err
	}
	cp.registry.MustRegister(buildinfo.Metric(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cp.checks = health.New(health.Options{Logger: o.Logger, Registerer: cp.registry, OwnAddress: localpeer.Is})
	cp.loops = loops{
		view: cp.loop("view"), agents: cp.requestingLoop("agents"), authority: cp.requestingLoop("authority"),
		servingCA: cp.requestingLoop("serving-ca"),
	}
	cp.addChecks()
	if err := cp.choosePlatform(); err != nil {
		return nil, err
	}
	return cp, nil
}

func (cp *ControlPlane) choosePlatform() (err error) {
	if cp.o.onKubernetes() {
		cp.platform, err = newCluster(cp)
	} else {
		cp.platform, err = newFiles(cp)
	}
	return err
}

// join creates the stages and connects them.
func (cp *ControlPlane) join(ctx context.Context) (err error) {
	log, m := cp.o.Logger, cp.platform.means()
	if err := cp.openIdentity(ctx, m.identity, m.names); err != nil {
		return err
	}
	cp.pipeline = pipeline.New(pipeline.Options{
		View: meshview.Options{
			TrustDomain: cp.o.TrustDomain, Sources: m.sources, ExplicitMeshes: m.explicitMeshes, RequireJoin: true,
			ServicesChecked: m.servicesChecked,
			Applied:         func(c meshview.Change) { cp.agents.Changed(c) }, Loop: cp.loops.view,
		},
		XDS: xds.Options{
			Logger: log, Describe: describe, Registerer: cp.registry, Listeners: cp.observeListeners,
			DrainTime: mesh.DefaultDrainTime, MaxDrainTime: mesh.MaxDrainTime, Aged: mtls.Aged,
		},
		Authority:  cp.authority,
		Emptied:    cp.platform.emptied,
		Publishing: func(proxies []mesh.ID) func() { return cp.agents.Publishing(proxies) },
		Logger:     log,
	}, pipeline.Authorize)
	if cp.peers, err = cp.platform.peers(); err != nil {
		return err
	}
	if cp.connection, err = cp.platform.connect(); err != nil {
		return err
	}
	builder, events := cp.pipeline.Builder, cp.connection.events
	cp.agents, err = agents.New(agents.Options{
		Authority: cp.authority, Tokens: cp.connection.tokens, Storage: m.storage, View: builder.View,
		Observe:   builder.Observe,
		Bootstrap: cp.bootstrap, Streams: cp.streams, Peers: cp.peers, Replica: cp.platform.replica(),
		Leads:   cp.platform.leads,
		Refused: events.Refused, Absent: events.Absent, ProbeFailed: events.ProbeFailed, CallsRefused: events.CallsRefused,
		Restarts: cp.connection.restarts, Frozen: cp.connection.frozen,
		ServingCA: cp.serving, ServingWaits: cp.connection.servingWaits,
		Version: cp.o.Version, Logger: log, Registerer: cp.registry, Loop: cp.loops.agents,
	})
	if err != nil {
		return err
	}
	cp.peers.Connect(cp.agents)
	cp.admin, err = admin.NewServer(cp.adminOptions())
	return err
}

// openIdentity opens the keys, and the records of proxies' certificates.
func (cp *ControlPlane) openIdentity(ctx context.Context, o identity.Options, names []string) (err error) {
	cp.serving, err = serving.Open(ctx, serving.Options{
		Storage: o.Secrets, Names: names, Logger: cp.o.Logger, Registerer: cp.registry, Loop: cp.loops.servingCA,
		Now: cp.o.now,
	})
	if err != nil {
		return err
	}
	if cp.adminToken, err = token.OpenAdmin(ctx, o.Secrets); err != nil {
		return err
	}
	if cp.tokens, err = token.Open(ctx, token.Options{Storage: o.Secrets, Now: cp.o.now}); err != nil {
		return err
	}
	o.Followed = func(meshName string) {
		cp.agents.Followed(meshName)
		cp.pipeline.Follow(meshName)
	}
	o.TrustDomain, o.Logger, o.Registerer, o.Loop, o.Now = cp.o.TrustDomain, cp.o.Logger, cp.registry, cp.loops.authority,
		cp.o.now
	if cp.authority, err = identity.New(ctx, o); err != nil {
		return err
	}
	cp.credentials, err = mtls.New(mtls.Options{
		TLS: cp.serving.TLS(), Verifier: cp.authority, Joins: agents.Joins, Logger: cp.o.Logger, Registerer: cp.registry,
		Now:    cp.o.now,
		Memory: cp.o.Memory, Serves: func() error { return cp.peers.Stale() },
		Places: mtls.Places{Arrivals: cp.places[usesArrivals], Joins: cp.places[usesJoins], Proxies: cp.places[usesProxies]},
	})
	return err
}

// describe returns log attributes for a node, in the form of all other logs. An unauthenticated client may have chosen
// the node.
func describe(node string) []any {
	meshName, name := mesh.SplitID(node)
	if name == "" {
		return []any{"node", node}
	}
	return []any{"mesh", meshName, "proxy", name}
}

// observeListeners passes on which listeners an Envoy has accepted and rejected.
func (cp *ControlPlane) observeListeners(node string, s xds.ListenerStatus) {
	l := observed.Listeners{Since: s.Since, Accepted: s.Accepted, Outbounds: s.Outbounds,
		Refused: map[netip.AddrPort]string{}}
	before := cp.agents.RefusedListeners(node)
	for _, n := range s.Refused {
		l.Refused[n.Address] = n.Reason
	}
	cp.agents.ObserveListeners(node, l)
	needed := cp.pipeline.Builder.View().Dataplane(node).OutboundListeners()
	for _, n := range s.Refused {
		if n.Outbound && !slices.Contains(needed, n.Address) {
			continue // the proxy does not use its IP family
		}
		if _, known := before[n.Address]; !known {
			cp.connection.events.ListenerRefused(node, n.Name, n.Reason)
		}
	}
}

// Run runs the control plane until ctx ends, and then returns nil. If a port is unavailable, the error is a
// *mesh.FieldError with a field of Options. While the API server does not answer, Run waits: the control plane is
// alive, but not ready. Run can be called once.
func (cp *ControlPlane) Run(ctx context.Context) error {
	defer func() {
		if err := cp.platform.close(); err != nil {
			cp.o.Logger.ErrorContext(ctx, "failed to close the state directory", "err", err)
		}
	}()
	if err := cp.listen(ctx); err != nil {
		return err
	}
	log := cp.o.Logger.With("agents", cp.listeners.agents.Addr().String(), "admin", cp.listeners.admin.Addr().String(),
		"health", cp.listeners.health.Addr().String())
	if cp.listeners.webhook != nil {
		log = log.With("webhook", cp.listeners.webhook.Addr().String())
	}
	log.InfoContext(ctx, "starting control plane", "version", cp.o.Version, "store", cp.o.Store)
	err := cp.serve(ctx)
	if err != nil {
		cp.o.Logger.ErrorContext(ctx, "control plane failed", "err", err)
		return err
	}
	cp.o.Logger.InfoContext(ctx, "control plane stopped")
	return nil
}

// Reconfigure changes options of a running control plane. It waits until the control plane has started, or returns the
// error of ctx.
func (cp *ControlPlane) Reconfigure(ctx context.Context, l Live) error {
	select {
	case <-cp.joined:
		cp.platform.reconfigure(l)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve runs all stages until ctx ends or one of them fails. It serves health longer than everything else, so that
// callers learn of the end.
func (cp *ControlPlane) serve(ctx context.Context) error {
	group, stages := errgroup.WithContext(context.WithoutCancel(ctx))
	stages, endStages := context.WithCancel(stages)
	defer endStages()
	asked, endHealth := context.WithCancel(context.WithoutCancel(ctx))
	defer endHealth()
	group.Go(func() error { return cp.serveHealth(asked) })
	group.Go(func() error {
		cp.checks.Watch(stages, cp.joined)
		return nil
	})
	group.Go(func() error {
		defer endHealth()
		return cp.serveStages(stages)
	})
	group.Go(func() error {
		defer endStages()
		select {
		case <-ctx.Done():
			cp.drain(stages)
		case <-stages.Done():
		}
		return nil
	})
	return group.Wait()
}

// drain makes the control plane unready, and waits until clients have noticed, unless it was never ready.
func (cp *ControlPlane) drain(ctx context.Context) {
	close(cp.draining)
	if cp.starting() != nil {
		return
	}
	cp.o.Logger.InfoContext(ctx, "draining control plane", "delay", cp.o.ShutdownDelay)
	_ = run.Sleep(ctx, cp.o.ShutdownDelay) // the following steps check ctx
}

// serveStages creates the stages and runs them until ctx ends or one of them fails.
func (cp *ControlPlane) serveStages(ctx context.Context) error {
	err := cp.platform.reach(ctx)
	if err == nil {
		err = cp.join(ctx)
	}
	if err == nil {
		close(cp.joined)
		return cp.run(ctx)
	}
	if ctx.Err() != nil {
		err = nil // err only tells why serving ended
	}
	return errors.Join(err, cp.listeners.closeUnserved())
}

// run runs the stages that join created.
func (cp *ControlPlane) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range cp.connection.tasks {
		group.Go(func() error { return task(ctx) })
	}
	group.Go(func() error { return cp.pipeline.Run(ctx) })
	group.Go(func() error { return cp.authority.Run(ctx) })
	group.Go(func() error { return cp.serving.Run(ctx) })
	group.Go(func() error { return cp.agents.Run(ctx) })
	group.Go(func() error { return cp.serveAgents(ctx) })
	group.Go(func() error { return cp.admin.Serve(ctx, cp.listeners.admin) })
	return group.Wait()
}
