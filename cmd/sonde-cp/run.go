package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds"
)

const (
	// sourceStore is the name of the store for the builder.
	sourceStore = "store"
	// addressesFile in the state folder says where the control plane listens.
	addressesFile = "addresses.json"
	// streamsPerConnection is enough for one agent or one Envoy: an ADS stream or a session, and a few calls.
	streamsPerConnection = 16
	// leastPingInterval is how often clients may ping; Envoy does so every 30 s.
	leastPingInterval = 10 * time.Second
	// A client that has vanished is detected after the sum of the two.
	pingInterval = 30 * time.Second
	pingTimeout  = 10 * time.Second
	// endTimeout is how long calls may still take when the control plane ends; streams end at once.
	endTimeout = 2 * time.Second
)

// controlPlane has all stages, see the picture in docs/architecture.md.
type controlPlane struct {
	options  Options
	log      *slog.Logger
	registry *prometheus.Registry

	state      *store.State
	authority  *identity.Authority
	builder    *meshview.Builder
	store      *store.Dir
	translator *generator.Translator
	xds        *xds.Server
	agents     *agents.Server
	admin      *admin.Server

	listeners listeners
}

// Run runs the control plane until ctx ends, and then returns nil.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	state, err := store.OpenState(o.StateDir)
	if err != nil {
		return err
	}
	defer state.Close() //nolint:errcheck // every write was synced
	cp := &controlPlane{options: o, log: log, state: state, registry: prometheus.NewRegistry()}
	cp.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := cp.join(); err != nil {
		return err
	}
	if err := cp.listen(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "control plane starts", "version", version(), "store", o.Store, "agents", cp.listeners.agents.Addr().String(),
		"admin", cp.listeners.admin.Addr().String(), "health", cp.listeners.health.Addr().String())
	err = cp.serve(ctx)
	log.InfoContext(ctx, "control plane ends", "err", err)
	return err
}

// join makes the stages and connects them.
func (cp *controlPlane) join() (err error) {
	cp.authority, err = identity.New(identity.Options{
		Storage: cp.state, TrustDomain: cp.options.TrustDomain, Logger: cp.log, Registerer: cp.registry,
	})
	if err != nil {
		return err
	}
	cp.builder = meshview.NewBuilder(meshview.Options{
		TrustDomain: cp.options.TrustDomain, Sources: []string{sourceStore}, RequireJoin: true,
		Applied: func(c meshview.Change) { cp.agents.Changed(c) },
	})
	cp.store = store.NewDir(store.DirOptions{
		Path: cp.options.storeFolder(), Builder: cp.builder, Source: sourceStore, Logger: cp.log, Registerer: cp.registry,
	})
	cp.translator = generator.NewTranslator(generator.TranslatorOptions{
		TrustDomain: cp.options.TrustDomain,
		Report:      func(err error) { cp.log.Error("resources left out", "err", err) },
	})
	cp.xds = xds.NewServer(xds.Options{
		Logger: cp.log, Registerer: cp.registry, DrainTime: mesh.DefaultDrainTime, Inbound: cp.observeListeners,
	}, cp.translator, authorize)
	cp.agents, err = agents.New(agents.Options{
		Authority: cp.authority, Storage: cp.state, View: cp.builder.View, Bootstrap: cp.bootstrap, Observe: cp.builder.Observe,
		Version: version(), Logger: cp.log, Registerer: cp.registry,
	})
	if err != nil {
		return err
	}
	cp.admin, err = admin.NewServer(cp.adminOptions())
	return err
}

// observeListeners passes on which inbound listeners an Envoy has accepted.
func (cp *controlPlane) observeListeners(node string, s xds.InboundStatus) {
	l := agents.Listeners{Accepted: s.Accepted, Refused: map[netip.AddrPort]string{}}
	for _, n := range s.Refused {
		l.Refused[n.Address] = n.Reason
	}
	cp.agents.ObserveListeners(node, l)
}

// authorize allows an ADS stream if the node ID is that of the client certificate.
func authorize(ctx context.Context, nodeID string) error {
	caller, err := identity.PeerFromContext(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if caller.ID() != nodeID {
		return fmt.Errorf("the certificate is for proxy %q, the node id is %q", caller.ID(), nodeID)
	}
	return nil
}

// apply passes a change of the view on to all Envoys that it affects.
func (cp *controlPlane) apply(ctx context.Context, c meshview.Change) {
	for name, m := range c.After.Meshes {
		before := c.Before.Mesh(name)
		if before == nil {
			if err := cp.authority.Ensure(name, m.Spec.Backend().CALife()); err != nil {
				cp.log.ErrorContext(ctx, "mesh has no CA", "mesh", name, "err", err)
			}
		} else if before.Spec.Backend() != nil && m.Spec.Backend() == nil {
			cp.log.WarnContext(ctx, "mutual TLS is off from now on", "mesh", name)
		}
	}
	desired, err := cp.translator.Apply(c)
	if err != nil {
		cp.log.ErrorContext(ctx, "resources left out", "err", err)
	}
	cp.xds.Publish(desired)
	cp.log.DebugContext(ctx, "view published", "generation", c.After.Generation,
		"services", len(c.Services), "endpoints", len(c.Endpoints), "proxies", len(c.Proxies))
}

// serve runs every stage until ctx ends or one of them fails.
func (cp *controlPlane) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return cp.store.Run(ctx) })
	group.Go(func() error { return cp.builder.Run(ctx, func(c meshview.Change) { cp.apply(ctx, c) }) })
	group.Go(func() error { return cp.agents.Run(ctx) })
	group.Go(func() error { return cp.serveAgents(ctx) })
	group.Go(func() error { return cp.admin.Serve(ctx, cp.listeners.admin) })
	group.Go(func() error {
		var live, ready health.Checks
		ready.Add("view", func(context.Context) error {
			if cp.builder.View() == nil {
				return errors.New("the store is not read yet")
			}
			return nil
		})
		ready.Add("state", func(context.Context) error { return cp.state.Check() })
		return health.Serve(ctx, cp.listeners.health, health.Handler(&live, &ready, cp.registry))
	})
	return group.Wait()
}

// serveAgents serves agents and ADS, on one port with the same credentials.
func (cp *controlPlane) serveAgents(ctx context.Context) error {
	server := grpc.NewServer(append(slices.Concat(cp.authority.ServerOptions(), xds.ServerOptions()),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPingInterval, PermitWithoutStream: true}),
	)...)
	cp.agents.Register(server)
	cp.xds.Register(server)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		timer := time.AfterFunc(endTimeout, server.Stop)
		defer timer.Stop()
		server.GracefulStop()
	})
	err := server.Serve(cp.listeners.agents)
	if stop() {
		server.Stop()
		cp.xds.Wait()
		return fmt.Errorf("serve agents on %s: %w", cp.listeners.agents.Addr(), err)
	}
	<-stopped
	cp.xds.Wait()
	return nil
}

// listeners of the control plane.
type listeners struct{ agents, admin, health net.Listener }

// listen opens all ports, or none, and writes their addresses to addressesFile.
func (cp *controlPlane) listen(ctx context.Context) (err error) {
	ports := []struct {
		flag     string
		port     uint16
		listener *net.Listener
	}{
		{"agents-port", cp.options.AgentsPort, &cp.listeners.agents},
		{"admin-port", cp.options.AdminPort, &cp.listeners.admin},
		{"health-port", cp.options.HealthPort, &cp.listeners.health},
	}
	var config net.ListenConfig
	addresses := map[string]string{}
	for i, p := range ports {
		at := net.JoinHostPort(cp.options.BindAddress, strconv.Itoa(int(p.port)))
		if *p.listener, err = config.Listen(ctx, "tcp", at); err != nil {
			for _, open := range ports[:i] {
				err = errors.Join(err, (*open.listener).Close())
			}
			return fmt.Errorf("listen for --%s: %w", p.flag, err)
		}
		addresses[p.flag[:len(p.flag)-len("-port")]] = (*p.listener).Addr().String()
	}
	data, err := json.Marshal(addresses)
	if err != nil {
		return fmt.Errorf("encode %s: %w", addressesFile, err)
	}
	return cp.state.Write(addressesFile, append(data, '\n'))
}
