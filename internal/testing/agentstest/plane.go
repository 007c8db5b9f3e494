// Package agentstest provides the other parts of a control plane for fuzz tests of the agents' API.
package agentstest

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

// Plane is a control plane with one Dataplane, whose identity is Subject. It ends with the test.
type Plane struct {
	Subject   identity.Subject
	State     *store.State
	Authority *identity.Authority
	Builder   *meshview.Builder
}

// New returns a Plane with a view, and with a CA.
func New(f testing.TB) *Plane {
	f.Helper()
	p := &Plane{Subject: identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}}
	var err error
	if p.State, err = store.OpenState(filepath.Join(f.TempDir(), "state")); err != nil {
		f.Fatal(err)
	}
	if p.Authority, err = identity.New(f.Context(), identity.Options{Secrets: p.State.Secrets(),
		Records: p.State}); err != nil {
		f.Fatal(err)
	}
	p.Builder = meshview.NewBuilder(meshview.Options{TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"test"}})
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = p.Subject.Mesh, p.Subject.Dataplane
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: "web"}}}
	m := &mesh.Mesh{Name: d.Mesh}
	for _, o := range []mesh.Object{m, d} {
		o.SetDefaults()
		p.Builder.Set("test", o)
	}
	p.Builder.Synced("test")
	p.run(f)
	if err := p.Authority.Ensure(f.Context(), d.Mesh, 0); err != nil {
		f.Fatal(err)
	}
	return p
}

// run runs the builder, and waits for the first view.
func (p *Plane) run(f testing.TB) {
	f.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	viewed := run.NewSignal()
	running.Go(func() {
		_ = p.Builder.Run(ctx, func(meshview.Change) {
			viewed.Set()
		})
	})
	f.Cleanup(func() {
		cancel()
		running.Wait()
		if err := p.State.Close(); err != nil {
			f.Error(err)
		}
	})
	<-viewed
}
