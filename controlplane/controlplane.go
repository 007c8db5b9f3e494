// Package controlplane joins the stages of the control plane. A Pipeline is what a change goes through, and a ControlPlane is
// all that a process runs.
package controlplane

import (
	"context"
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/mtls"
	"github.com/sonde-mesh/sonde/xds"
)

// ControlPlane has all stages, see the picture in docs/architecture.md.
type ControlPlane struct {
	o        Options
	registry *prometheus.Registry

	platform    platform
	authority   *identity.Authority
	serving     *serving.Certificate
	credentials *mtls.Credentials
	tokens      *token.Issuer
	adminToken  string

	pipeline *Pipeline
	agents   *agents.Server
	admin    *admin.Server

	listeners listeners
	joined    chan struct{}         // closed once the stages above are there
	waiting   atomic.Pointer[error] // why they are not, nil if that is not known
}

// New returns a control plane. With a directory of files it claims the state directory until Run returns, so Run has to be called.
// Errors about options are those of Options.Validate.
func New(o Options) (*ControlPlane, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	cp := &ControlPlane{o: o, registry: prometheus.NewRegistry(), joined: make(chan struct{})}
	cp.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	use := cp.useFiles
	if o.onKubernetes() {
		use = cp.useKubernetes
	}
	if err := use(); err != nil {
		return nil, err
	}
	return cp, nil
}

// join makes the stages and connects them.
func (cp *ControlPlane) join(ctx context.Context) (err error) {
	if err := cp.openIdentity(ctx); err != nil {
		return err
	}
	log := cp.o.Logger
	cp.pipeline = NewPipeline(PipelineOptions{
		View: meshview.Options{
			TrustDomain: cp.o.TrustDomain, Sources: cp.platform.sources, ExplicitMeshes: cp.platform.explicitMeshes, RequireJoin: true,
			Applied: func(c meshview.Change) { cp.agents.Changed(c) },
		},
		XDS: xds.Options{
			Logger: log, Registerer: cp.registry, Inbound: cp.observeListeners,
			DrainTime: mesh.DefaultDrainTime, MaxDrainTime: mesh.MaxDrainTime,
		},
		Authority: cp.authority,
		Logger:    log,
	}, Authorize)
	if err := cp.platform.connect(); err != nil {
		return err
	}
	tokens := cp.platform.tokens
	if tokens == nil {
		tokens = cp.tokens
	}
	builder := cp.pipeline.Builder
	cp.agents, err = agents.New(agents.Options{
		Authority: cp.authority, Tokens: tokens, Storage: cp.platform.storage, View: builder.View, Bootstrap: cp.bootstrap,
		Observe: builder.Observe, Refused: cp.platform.refused, ProbeFailed: cp.platform.probeFailed, Version: cp.o.Version, Logger: log, Registerer: cp.registry,
	})
	if err != nil {
		return err
	}
	cp.admin, err = admin.NewServer(cp.adminOptions())
	return err
}

// openIdentity opens the keys, and which certificates proxies have.
func (cp *ControlPlane) openIdentity(ctx context.Context) (err error) {
	o := cp.platform.identity
	cp.serving, err = serving.Open(ctx, serving.Options{Storage: o.Secrets, Names: cp.platform.names, Registerer: cp.registry})
	if err != nil {
		return err
	}
	if cp.adminToken, err = token.OpenAdmin(ctx, o.Secrets); err != nil {
		return err
	}
	if cp.tokens, err = token.Open(ctx, token.Options{Storage: o.Secrets}); err != nil {
		return err
	}
	o.TrustDomain, o.Logger, o.Registerer = cp.o.TrustDomain, cp.o.Logger, cp.registry
	if cp.authority, err = identity.New(ctx, o); err != nil {
		return err
	}
	cp.credentials, err = mtls.New(mtls.Options{
		TLS: cp.serving.TLS(), Verifier: cp.authority, Logger: cp.o.Logger, Registerer: cp.registry,
	})
	return err
}

// observeListeners passes on which inbound listeners an Envoy has accepted.
func (cp *ControlPlane) observeListeners(node string, s xds.InboundStatus) {
	l := agents.Listeners{Accepted: s.Accepted, Refused: map[netip.AddrPort]string{}}
	for _, n := range s.Refused {
		l.Refused[n.Address] = n.Reason
	}
	cp.agents.ObserveListeners(node, l)
}

// Run runs the control plane until ctx ends, and then returns nil. A port that cannot be listened on is a *mesh.FieldError that
// names a field of Options. An API server that does not answer is waited for: the control plane is alive meanwhile, and not ready. Run
// can be called once.
func (cp *ControlPlane) Run(ctx context.Context) error {
	defer cp.platform.close() //nolint:errcheck // every write was synced
	if err := cp.listen(ctx); err != nil {
		return err
	}
	cp.o.Logger.InfoContext(ctx, "control plane starts", "version", cp.o.Version, "store", cp.o.Store,
		"agents", cp.listeners.agents.Addr().String(), "admin", cp.listeners.admin.Addr().String(), "health", cp.listeners.health.Addr().String())
	err := cp.serve(ctx)
	cp.o.Logger.InfoContext(ctx, "control plane ends", "err", err)
	return err
}

// serve runs every stage until ctx ends or one of them fails.
func (cp *ControlPlane) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cp.serveHealth(ctx) })
	group.Go(func() error {
		err := cp.platform.reach(ctx)
		if err == nil {
			err = cp.join(ctx)
		}
		if err == nil {
			close(cp.joined)
			cp.run(ctx, group)
			return nil
		}
		if ctx.Err() != nil {
			err = nil // that is why
		}
		return errors.Join(err, cp.listeners.closeUnserved())
	})
	return group.Wait()
}

// run runs the stages that join has made.
func (cp *ControlPlane) run(ctx context.Context, group *errgroup.Group) {
	for _, task := range cp.platform.tasks {
		group.Go(func() error { return task(ctx) })
	}
	group.Go(func() error { return cp.pipeline.Run(ctx) })
	group.Go(func() error { return cp.authority.Run(ctx) })
	group.Go(func() error { return cp.agents.Run(ctx) })
	group.Go(func() error { return cp.serveAgents(ctx) })
	group.Go(func() error { return cp.admin.Serve(ctx, cp.listeners.admin) })
}

// errStarting says that the stages are being made.
var errStarting = errors.New("the control plane starts")

func (cp *ControlPlane) isJoined() bool {
	select {
	case <-cp.joined:
		return true
	default:
		return false
	}
}

// serveHealth serves health and metrics.
func (cp *ControlPlane) serveHealth(ctx context.Context) error {
	var live, ready health.Checks
	ready.Add("state", func(context.Context) error {
		if !cp.isJoined() {
			if why := cp.waiting.Load(); why != nil {
				return *why
			}
			return errStarting
		}
		return cp.platform.check()
	})
	ready.Add("view", func(context.Context) error {
		if !cp.isJoined() || cp.pipeline.Builder.View() == nil {
			return errors.New("the store is not read yet")
		}
		return nil
	})
	return health.Serve(ctx, cp.listeners.health, health.Handler(&live, &ready, cp.registry))
}
