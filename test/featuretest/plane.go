package featuretest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	sourceStore  = "store"
	sourceMarker = "marker"
	markerMesh   = "featuretest"
	markerName   = "marker"
)

// plane is the control plane: the stages, and what cmd/sonde-cp has between them.
type plane struct {
	log        *slog.Logger
	state      *store.State
	authority  *identity.Authority
	builder    *meshview.Builder
	dir        *store.Dir // nil unless a folder is watched
	translator *generator.Translator
	xds        *xds.Server
	address    string

	cancel context.CancelFunc
	group  *errgroup.Group

	mu      sync.Mutex
	view    *meshview.View
	applied chan struct{} // closed at the next view
}

func startPlane(t *testing.T, stateFolder, watched string) *plane {
	t.Helper()
	p := &plane{log: logger(t), applied: make(chan struct{})}
	var err error
	if p.state, err = store.OpenState(stateFolder); err != nil {
		t.Fatal(err)
	}
	if p.authority, err = identity.New(identity.Options{Storage: p.state, Logger: p.log}); err != nil {
		t.Fatal(err)
	}
	p.builder = meshview.NewBuilder(meshview.Options{Sources: []string{sourceStore}})
	p.translator = generator.NewTranslator(generator.TranslatorOptions{Report: func(err error) { t.Errorf("resources left out: %v", err) }})
	p.xds = xds.NewServer(xds.Options{Logger: p.log}, p.translator, authorize)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.cancel = cancel
	p.group, ctx = errgroup.WithContext(ctx)
	if watched != "" {
		p.dir = store.NewDir(store.DirOptions{Path: watched, Builder: p.builder, Source: sourceStore, Logger: p.log})
		p.group.Go(func() error { return p.dir.Run(ctx) })
	}
	p.group.Go(func() error { return p.builder.Run(ctx, func(c meshview.Change) { p.apply(t, c) }) })
	p.group.Go(func() error { return p.serve(ctx, listener) })
	return p
}

// authorize is the authorisation of ADS in cmd/sonde-cp.
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

func (p *plane) apply(t *testing.T, c meshview.Change) {
	for name, m := range c.After.Meshes {
		if c.Before.Mesh(name) != nil {
			continue
		}
		if err := p.authority.Ensure(name, m.Spec.Backend().CALife()); err != nil {
			t.Errorf("mesh %q has no CA: %v", name, err)
		}
	}
	desired, err := p.translator.Apply(c)
	if err != nil {
		t.Errorf("resources left out: %v", err)
	}
	p.xds.Publish(desired)

	p.mu.Lock()
	defer p.mu.Unlock()
	p.view = c.After
	close(p.applied)
	p.applied = make(chan struct{})
}

func (p *plane) settle(ctx context.Context, step int) error {
	want := marker(step)
	m := &mesh.Mesh{Name: markerMesh}
	m.SetDefaults()
	p.builder.Set(sourceMarker, m)
	p.builder.Set(sourceMarker, want)
	for {
		p.mu.Lock()
		view, next := p.view, p.applied
		p.mu.Unlock()
		_, got := view.Proxy(want.ID())
		if got != nil && got.Dataplane.Spec.Networking.Address == want.Spec.Networking.Address {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *plane) serve(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(append(slices.Concat(p.authority.ServerOptions(), xds.ServerOptions()),
		grpc.MaxConcurrentStreams(16),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	)...)
	p.xds.Register(server)
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(stopped)
		server.Stop()
	})
	err := server.Serve(listener)
	if ctx.Err() == nil {
		return err
	}
	<-stopped
	p.xds.Wait()
	return nil
}

func (p *plane) stop(t *testing.T) {
	p.cancel()
	if err := errors.Join(p.group.Wait(), p.state.Close()); err != nil {
		t.Errorf("stop the control plane: %v", err)
	}
}

func describe(d resource.Desired) []string {
	var all []string
	for _, typ := range resource.Types() {
		for _, set := range []*resource.Set{d.Shared, d.Own} {
			for _, r := range set.Of(typ) {
				all = append(all, typ.Short()+" "+r.Name+" "+r.Version)
			}
		}
	}
	return all
}
