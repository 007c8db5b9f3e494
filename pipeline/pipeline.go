// Package pipeline passes changes of the mesh from the view to Envoy. It needs no network.
package pipeline

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/since"
	"github.com/sonde-mesh/sonde/recorded"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Options of a Pipeline. The zero value is usable.
type Options struct {
	// View has the options of the Builder. Its TrustDomain is also the Translator's.
	View meshview.Options
	// XDS has the options of the ADS server.
	XDS xds.Options
	// Authority makes a CA for each new mesh, and records its Mesh. Default: meshes get no CA.
	Authority *identity.Authority
	// Emptied reports whether the store has no objects, as with an unmounted volume: recorded meshes do not end
	// meanwhile. Default: never.
	Emptied func() bool
	// Publishing is called before the Builder's View has a change that concerns these proxies' endpoints. The function
	// it returns is called once all Envoys concerned have ACKed it, or after awaitLimit: a hanging Envoy holds up no
	// other. Proxies of pods are left out. Default: nothing.
	Publishing func([]mesh.ID) (taken func())
	// Logger. Default: no logging. An error means that a change was not fully passed on.
	Logger *slog.Logger
}

// awaitLimit bounds the wait for Envoys to take a change.
const awaitLimit = time.Second

// Pipeline has the stages of a change on its way to Envoy: sources pass objects to the Builder, and streams come to the
// ADS server. New sets its fields.
type Pipeline struct {
	Builder    *meshview.Builder
	Translator *generator.Translator
	XDS        *xds.Server
	// Since has how long states shown to users have lasted.
	Since *since.Times

	authority   *identity.Authority
	recorder    *recorded.Recorder
	trustDomain string
	loop        *heartbeat.Loop
	publishing  func([]mesh.ID) func()
	awaiting    sync.WaitGroup
	log         *slog.Logger
	// newest is the view being passed on, or the last one that was.
	newest atomic.Pointer[meshview.View]
}

// New joins builder, translator and ADS server. authorize decides which client may open an ADS stream; with mTLS it is
// Authorize.
func New(o Options, authorize Authorizer) *Pipeline {
	p := &Pipeline{authority: o.Authority, trustDomain: o.View.TrustDomain, loop: o.View.Loop, Since: since.New(),
		publishing: o.Publishing, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	if o.Authority != nil {
		o.View.Sources = append(slices.Clone(o.View.Sources), recorded.Source)
	}
	p.Builder = meshview.NewBuilder(o.View)
	if o.Authority != nil {
		p.recorder = recorded.New(o.Authority, p.Builder, o.Emptied, p.log)
	}
	p.Translator = generator.NewTranslator(generator.TranslatorOptions{
		TrustDomain: o.View.TrustDomain,
		Report:      func(err error) { p.log.Error("failed to generate resources", "err", err) },
	})
	if o.XDS.Registerer != nil {
		o.XDS.Registerer.MustRegister(uncheckedEndpoints{p.Builder.View})
	}
	p.XDS = xds.NewServer(o.XDS, p.Translator, func(ctx context.Context, nodeID string) error {
		_, proxy := p.newest.Load().Proxy(nodeID)
		return authorize(ctx, nodeID, proxy)
	})
	return p
}

// Follow loads the record of a mesh that another replica has written.
func (p *Pipeline) Follow(meshName string) { p.recorder.Follow(meshName) }

// CheckRecords returns problems of the recorded meshes, nil without any.
func (p *Pipeline) CheckRecords() error { return p.recorder.Check(p.Builder.View()) }

// CheckCAs returns which meshes cannot issue certificates, nil if all can.
func (p *Pipeline) CheckCAs() error {
	v := p.Builder.View()
	if v == nil {
		return nil // no mesh is served yet
	}
	return p.authority.CheckCAs(slices.Sorted(maps.Keys(v.Meshes)))
}

// Run passes all changes on until ctx ends, and then returns nil.
func (p *Pipeline) Run(ctx context.Context) error {
	defer p.awaiting.Wait()
	p.awaiting.Go(func() { p.recorder.Run(ctx) })
	return p.Builder.Run(ctx, func(c meshview.Change) { p.apply(ctx, c) })
}

// apply passes a change of the view on to all Envoys that it affects.
func (p *Pipeline) apply(ctx context.Context, c meshview.Change) {
	p.ensureAuthorities(ctx, c)
	p.recorder.Record(ctx, c)
	p.newest.Store(c.After)
	p.Since.Follow(c, time.Now())
	p.XDS.Reauthorize(newInstances(c))
	desired, err := p.Translator.Apply(c)
	if err != nil {
		p.log.ErrorContext(ctx, "failed to generate resources", "err", err)
	}
	taken := p.publish(c)
	p.XDS.Publish(desired)
	taken(ctx, desired)
	logUnknown(ctx, p.log, c)
	p.log.DebugContext(ctx, "published view", "generation", c.After.Generation,
		"services", len(c.Services), "endpoints", len(c.Endpoints), "proxies", len(c.Proxies))
}

// publish calls Options.Publishing for a change. The function it returns waits in the background for the Envoys
// concerned.
func (p *Pipeline) publish(c meshview.Change) (taken func(context.Context, map[string]resource.Desired)) {
	var ids []mesh.ID
	for _, id := range slices.Concat(c.Observed, c.Proxies) {
		if _, proxy := c.After.Proxy(id); proxy != nil && !proxy.Dataplane.IsPod() {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 || p.publishing == nil {
		return func(context.Context, map[string]resource.Desired) {}
	}
	done := p.publishing(ids)
	return func(ctx context.Context, desired map[string]resource.Desired) {
		p.awaiting.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, awaitLimit)
			defer cancel()
			p.XDS.Await(ctx, slices.Collect(maps.Keys(desired)))
			done()
		})
	}
}

// newInstances returns the proxies of a change that are new, or replaced by another instance with the same name.
func newInstances(c meshview.Change) []mesh.ID {
	var ids []mesh.ID
	for _, id := range c.Proxies {
		_, before := c.Before.Proxy(id)
		_, after := c.After.Proxy(id)
		if after != nil && (before == nil || before.Dataplane.Identity.Instance != after.Dataplane.Identity.Instance) {
			ids = append(ids, id)
		}
	}
	return ids
}

// ensureAuthorities makes a CA for each new mesh.
func (p *Pipeline) ensureAuthorities(ctx context.Context, c meshview.Change) {
	for name, m := range c.After.Meshes {
		before := c.Before.Mesh(name)
		switch {
		case before != nil && before.Spec.Backend() != nil && m.Spec.Backend() == nil:
			p.log.WarnContext(ctx, "mTLS is off from now on", "mesh", name)
		case before == nil && p.authority != nil:
			p.loop.Beat() // each may wait for the storage
			if err := p.authority.Ensure(ctx, name, m.Spec.Backend().CAValidity()); err != nil {
				p.log.ErrorContext(ctx, "failed to make the CA of a mesh", "mesh", name, "err", err)
			}
		}
	}
}
