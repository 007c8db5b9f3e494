package featuretest

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/secret/secrettest"
	"github.com/sonde-mesh/sonde/identity/serving"
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

// plane is the pipeline of the control plane, and what serves it to clients with certificates.
type plane struct {
	*controlplane.Pipeline
	log       *slog.Logger
	authority *identity.Authority
	serving   *serving.Certificate
	dir       *store.Dir // nil unless a directory is watched
	address   string
	applied   chan struct{} // has a value after a new view

	cancel context.CancelFunc
	group  *errgroup.Group
}

func startPlane(t *testing.T, kept secrettest.Records, watched string) *plane {
	t.Helper()
	p := &plane{log: logger(t), applied: make(chan struct{}, 1)}
	var err error
	if p.authority, err = identity.New(t.Context(), identity.Options{Secrets: kept.Memory, Records: kept, Logger: p.log}); err != nil {
		t.Fatal(err)
	}
	if p.serving, err = serving.Open(t.Context(), serving.Options{Storage: kept.Memory}); err != nil {
		t.Fatal(err)
	}
	credentials, err := mtls.New(mtls.Options{TLS: p.serving.TLS(), Verifier: p.authority, Logger: p.log})
	if err != nil {
		t.Fatal(err)
	}
	p.Pipeline = controlplane.NewPipeline(controlplane.PipelineOptions{
		View:      meshview.Options{Sources: []string{sourceStore}, Applied: p.notify},
		XDS:       xds.Options{Logger: p.log},
		Authority: p.authority,
		Logger:    slog.New(slog.NewTextHandler(failing{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}, controlplane.Authorize)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.cancel = cancel
	p.group, ctx = errgroup.WithContext(ctx)
	if watched != "" {
		p.dir = store.NewDir(store.DirOptions{Path: watched, Builder: p.Builder, Source: sourceStore, Logger: p.log})
		p.group.Go(func() error { return p.dir.Run(ctx) })
	}
	p.group.Go(func() error { return p.Run(ctx) })
	p.group.Go(func() error { return p.serve(ctx, listener, credentials) })
	return p
}

func (p *plane) notify(meshview.Change) {
	select {
	case p.applied <- struct{}{}:
	default: // settle has not yet looked at the view before
	}
}

func (p *plane) settle(ctx context.Context, step int) error {
	want := marker(step)
	m := &mesh.Mesh{Name: markerMesh}
	m.SetDefaults()
	p.Builder.Set(sourceMarker, m)
	p.Builder.Set(sourceMarker, want)
	for {
		_, got := p.Builder.View().Proxy(want.ID())
		if got != nil && got.Dataplane.Spec.Networking.Address == want.Spec.Networking.Address {
			return nil
		}
		select {
		case <-p.applied:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *plane) serve(ctx context.Context, listener net.Listener, c *mtls.Credentials) error {
	server := controlplane.NewServer(c, 0, xds.ServerOptions()...)
	p.XDS.Register(server)
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
	p.XDS.Wait()
	return nil
}

func (p *plane) stop(t *testing.T) {
	p.cancel()
	if err := p.group.Wait(); err != nil {
		t.Errorf("stop the control plane: %v", err)
	}
}

func describe(d resource.Desired) []string {
	var all []string
	for _, typ := range resource.Types() {
		for _, set := range []*resource.Set{d.Shared, d.Node, d.Own} {
			for _, r := range set.Of(typ) {
				all = append(all, typ.Short()+" "+r.Name+" "+r.Version)
			}
		}
	}
	return all
}
