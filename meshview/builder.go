package meshview

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Options of a Builder.
type Options struct {
	// TrustDomain is the suffix of every mesh's trust domain. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// Sources are the sources that must have called Synced before the first Change. Default none. If two sources have
	// the same object, the source that is listed first takes precedence; sources that are not listed come last. Any
	// Mesh takes precedence over a mesh that is Recorded.
	Sources []string
	// RequireJoin makes an inbound NotReady until its proxy's Observation says that it has joined. Leave it unset for
	// views without agents, for instance of files alone.
	RequireJoin bool
	// ExplicitMeshes means that a mesh exists only with its Mesh object. Otherwise, while there is no Mesh at all, a
	// mesh named default without mTLS exists.
	ExplicitMeshes bool
	// ServicesChecked means that another component, such as kubelets, checks the applications of Service objects.
	// Default false.
	ServicesChecked bool
	// Applied is called by Run once View returns the view of a Change. Default: no call.
	Applied func(Change)
	// Loop watches Run, and so all code that receives a Change. Default: none.
	Loop *heartbeat.Loop
}

// Builder is the only writer of views. Objects must have their defaults, be valid, and not change after they are passed
// in. All methods may be called from any goroutine.
type Builder struct {
	sources []string
	after   func(Change)
	loop    *heartbeat.Loop
	wake    run.Signal
	applied atomic.Pointer[View]

	mu      sync.Mutex // guards the input that no view has yet
	pending input
	missing map[string]struct{} // sources that have not synced

	building sync.Mutex // held for a whole Build; guards the fields below
	state    *state
	built    *View
}

// input is what has changed since the last Build. It keeps only the latest value of each object, so it never grows
// larger than the mesh, however late the next Build is.
type input struct {
	objects  map[sourceKey]mesh.Object // nil: deleted
	observed map[mesh.ID]mesh.Observation
}

// sourceKey identifies an object of one source.
type sourceKey struct {
	source string
	key    mesh.Key
}

// NewBuilder returns a Builder without objects.
func NewBuilder(o Options) *Builder {
	if o.TrustDomain == "" {
		o.TrustDomain = mesh.DefaultTrustDomain
	}
	if o.Applied == nil {
		o.Applied = func(Change) {}
	}
	b := &Builder{
		sources: slices.Clone(o.Sources),
		after:   o.Applied,
		loop:    o.Loop,
		wake:    run.NewSignal(),
		missing: map[string]struct{}{},
		state:   newState(o),
	}
	for _, s := range o.Sources {
		b.missing[s] = struct{}{}
	}
	b.reset()
	b.wake.Set() // there is a view even of a mesh without sources and objects
	return b
}

// Set adds or replaces an object of a source. It returns at once.
func (b *Builder) Set(source string, o mesh.Object) { b.put(sourceKey{source, o.Key()}, o) }

// Delete removes an object of a source. It returns at once.
func (b *Builder) Delete(source string, key mesh.Key) { b.put(sourceKey{source, key}, nil) }

func (b *Builder) put(h sourceKey, o mesh.Object) {
	b.mu.Lock()
	b.pending.objects[h] = o
	b.mu.Unlock()
	b.wake.Set()
}

// Synced records that a source has passed in all objects that it had at the start. It returns at once.
func (b *Builder) Synced(source string) {
	b.mu.Lock()
	delete(b.missing, source)
	b.mu.Unlock()
	b.wake.Set()
}

// Observe replaces the Observation of a proxy. It returns at once. The Observation is kept until the next one, whether
// or not the proxy has a Dataplane; the zero Observation removes it.
func (b *Builder) Observe(proxy mesh.ID, o mesh.Observation) {
	b.mu.Lock()
	b.pending.observed[proxy] = o
	b.mu.Unlock()
	b.wake.Set()
}

// reset drops the input. The caller holds mu.
func (b *Builder) reset() {
	b.pending = input{objects: map[sourceKey]mesh.Object{}, observed: map[mesh.ID]mesh.Observation{}}
}

// takePending returns the input since the last call, false until all sources have synced.
func (b *Builder) takePending() (input, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.missing) > 0 {
		return input{}, false
	}
	in := b.pending
	b.reset()
	return in, true
}

// Build builds the next view from all input so far. It returns false if a source has not synced or nothing differs. The
// view depends only on the objects, not on the order and number of the calls that passed them in. Before of the first
// Change is nil. Build does not affect View.
func (b *Builder) Build() (Change, bool) {
	b.building.Lock()
	defer b.building.Unlock()
	in, ok := b.takePending()
	if !ok {
		return Change{}, false
	}
	for h, o := range in.objects {
		b.state.put(claim{source: h.source, rank: b.rank(h.source), object: o}, h.key)
	}
	for id, o := range in.observed {
		b.state.observe(id, o)
	}
	c, ok := b.state.next(b.built)
	if ok {
		b.built = c.After
	}
	return c, ok
}

func (b *Builder) rank(source string) int {
	if i := slices.Index(b.sources, source); i >= 0 {
		return i
	}
	return len(b.sources)
}

// Run builds a view whenever there is input, and calls apply with each Change, one after the other. Input that arrives
// while apply runs is in the next Change. It returns nil when ctx has ended and apply has returned.
func (b *Builder) Run(ctx context.Context, apply func(Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx has ended, as intended
		}
		b.loop.Begin()
		if c, ok := b.Build(); ok {
			apply(c)
			b.applied.Store(c.After)
			b.after(c)
		}
		b.loop.End()
	}
}

// View returns the last view for which apply has returned, nil before the first. So agents and users never see a view
// that the proxies' streams have not received.
func (b *Builder) View() *View { return b.applied.Load() }
