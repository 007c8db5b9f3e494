package featuretest

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/pipeline"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	sourceStore = "store"
	// address is where ADS is served. client is the host of all clients.
	address, client = "10.255.0.1:5678", "10.255.0.2"
)

// plane is the pipeline of the control plane and its server, whose clients need certificates.
type plane struct {
	*pipeline.Pipeline
	log       *slog.Logger
	authority *identity.Authority
	serving   *serving.Certificate

	cancel context.CancelFunc
	group  *errgroup.Group
}

func startPlane(t *testing.T, network *virtual.Network, kept secrettest.Records) *plane {
	t.Helper()
	p := &plane{log: logger(t)}
	var err error
	options := identity.Options{Secrets: kept.Memory, Records: kept, Logger: p.log}
	if p.authority, err = identity.New(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	if p.serving, err = serving.Open(t.Context(), serving.Options{Storage: kept.Memory}); err != nil {
		t.Fatal(err)
	}
	credentials, err := mtls.New(mtls.Options{TLS: p.serving.TLS(), Verifier: p.authority, Logger: p.log})
	if err != nil {
		t.Fatal(err)
	}
	p.Pipeline = pipeline.New(pipeline.Options{
		View:      meshview.Options{Sources: []string{sourceStore}},
		XDS:       xds.Options{Logger: p.log},
		Authority: p.authority,
		Logger:    slog.New(slog.NewTextHandler(failing{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}, pipeline.Authorize)
	listener, err := network.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p.cancel = cancel
	p.group, ctx = errgroup.WithContext(ctx)
	p.group.Go(func() error { return p.Run(ctx) })
	p.group.Go(func() error { return p.serve(ctx, listener, credentials) })
	return p
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
		t.Errorf("failed to stop the control plane: %v", err)
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
