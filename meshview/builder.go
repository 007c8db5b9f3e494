package meshview

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Options of a Builder.
type Options struct {
	// TrustDomain ends the trust domain of every mesh. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// Sources that must all have said Synced before the first Change. Default none. Where two sources hold the same
	// object, the one named first here counts, and a source that is not named comes after those that are.
	Sources []string
}

// Builder is the only writer of views. Objects are expected to have their defaults and to be valid; they must not
// change after they are handed over. All methods are safe from any goroutine.
type Builder struct {
	sources []string
	wake    chan struct{}
	applied atomic.Pointer[View]

	mu      sync.Mutex // guards the input that no view holds yet
	pending input
	missing map[string]struct{} // sources that are not synced

	building sync.Mutex // guards what follows; held for a whole Build
	state    *state
	built    *View
}

// input is what came since the last Build. Only the last word on each thing is kept, so that it is never larger than
// the mesh itself, however long a Build is away.
type input struct {
	objects  map[held]mesh.Object // nil: deleted
	observed map[mesh.ID]mesh.Observation
}

// held is one object as one source has it.
type held struct {
	source string
	key    mesh.Key
}

// NewBuilder returns a Builder without any object.
func NewBuilder(o Options) *Builder {
	if o.TrustDomain == "" {
		o.TrustDomain = mesh.DefaultTrustDomain
	}
	b := &Builder{
		sources: slices.Clone(o.Sources),
		wake:    make(chan struct{}, 1),
		missing: map[string]struct{}{},
		state:   newState(o.TrustDomain),
	}
	for _, s := range o.Sources {
		b.missing[s] = struct{}{}
	}
	b.reset()
	b.signal() // without sources and without objects there is a view too
	return b
}

// Set adds or replaces an object of a source. It returns at once.
func (b *Builder) Set(source string, o mesh.Object) { b.put(held{source, o.Key()}, o) }

// Delete removes an object of a source. It returns at once.
func (b *Builder) Delete(source string, key mesh.Key) { b.put(held{source, key}, nil) }

func (b *Builder) put(h held, o mesh.Object) {
	b.mu.Lock()
	b.pending.objects[h] = o
	b.mu.Unlock()
	b.signal()
}

// Synced says that a source has Set all that it had at start. It returns at once.
func (b *Builder) Synced(source string) {
	b.mu.Lock()
	delete(b.missing, source)
	b.mu.Unlock()
	b.signal()
}

// Observe replaces what is known about a proxy beside its Dataplane. It returns at once. What is observed of a proxy
// is kept whether or not there is a Dataplane, until it is observed anew; the zero Observation is not stored.
func (b *Builder) Observe(proxy mesh.ID, o mesh.Observation) {
	b.mu.Lock()
	b.pending.observed[proxy] = o
	b.mu.Unlock()
	b.signal()
}

func (b *Builder) signal() {
	select {
	case b.wake <- struct{}{}:
	default: // Run has not yet seen the last one
	}
}

// reset needs mu.
func (b *Builder) reset() {
	b.pending = input{objects: map[held]mesh.Object{}, observed: map[mesh.ID]mesh.Observation{}}
}

// take returns all input since the last call, false while a source is not synced.
func (b *Builder) take() (input, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.missing) > 0 {
		return input{}, false
	}
	in := b.pending
	b.reset()
	return in, true
}

// Build makes the next view from all input so far. It returns false, and no Change, if a source is not synced or
// nothing differs. The same objects give the same view, in whatever order they came and in however many steps.
// Before of the first Change is nil. Build does not touch what View returns.
func (b *Builder) Build() (Change, bool) {
	b.building.Lock()
	defer b.building.Unlock()
	in, ok := b.take()
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

// Run builds a view whenever there is input and hands each Change to apply, one after the other. While apply is busy
// input gathers, so that the next Change holds all of it. It returns nil when ctx ends, after apply has returned.
func (b *Builder) Run(ctx context.Context, apply func(Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is how Run is meant to end
		}
		if c, ok := b.Build(); ok {
			apply(c)
			b.applied.Store(c.After)
		}
	}
}

// View returns the last view that Run's apply has finished with, nil before. Agents and people so never see what the
// proxies do not have yet.
func (b *Builder) View() *View { return b.applied.Load() }
