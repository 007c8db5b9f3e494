// Package recorded stores the Mesh of each mesh with mTLS beside its CA: a lost Mesh must not turn mTLS off (decision
// 065).
package recorded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/meshview"
)

// Source is the source of recorded meshes for the Builder.
const Source = "recorded"

// recordAgain is the interval of retries of failed writes, and of the search for ended meshes.
const recordAgain = 5 * time.Second

// Recorder stores the Mesh of each mesh with mTLS beside its CA, and passes it to the Builder as a Recorded mesh. A nil
// Recorder is valid and records nothing.
type Recorder struct {
	authority *identity.Authority
	builder   *meshview.Builder
	emptied   func() bool
	log       *slog.Logger

	// bare has since when meshes have had neither Mesh nor Dataplanes. Only Run uses it.
	bare map[string]time.Time

	mu      sync.Mutex
	refused map[string]refusedRecord
}

// refusedRecord is a failed write. A nil spec is a removal.
type refusedRecord struct {
	spec *mesh.MeshSpec
	err  error
}

// New returns a Recorder that has passed on the stored records. emptied reports whether the store has no objects, as
// with an unmounted volume: no mesh ends meanwhile. Default: never.
func New(a *identity.Authority, b *meshview.Builder, emptied func() bool, log *slog.Logger) *Recorder {
	if emptied == nil {
		emptied = func() bool { return false }
	}
	r := &Recorder{authority: a, builder: b, emptied: emptied, log: log, refused: map[string]refusedRecord{},
		bare: map[string]time.Time{}}
	for _, m := range a.Recorded() {
		b.Set(Source, m)
	}
	b.Synced(Source)
	return r
}

// Record records the changed Meshes. Call it before the change takes effect: a restart in between must find the record.
func (r *Recorder) Record(ctx context.Context, c meshview.Change) {
	if r == nil {
		return
	}
	for name, m := range c.After.Meshes {
		switch before := c.Before.Mesh(name); {
		case m.Spec.Recorded:
		case before != nil && before.Spec == m.Spec:
		case m.Spec.Backend() == nil:
			r.keep(ctx, name, nil)
		default:
			r.keep(ctx, name, &m.Spec.Spec)
		}
	}
}

// keep records the spec of a Mesh; nil removes the record. A failed write is retried by Run.
func (r *Recorder) keep(ctx context.Context, name string, spec *mesh.MeshSpec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(ctx, name, spec)
	r.pass(name, spec)
}

// write writes a record. The caller holds mu.
func (r *Recorder) write(ctx context.Context, name string, spec *mesh.MeshSpec) {
	err := r.authority.Record(ctx, name, spec)
	if err == nil || spec == nil && errors.Is(err, identity.ErrCANotFound) {
		delete(r.refused, name)
		return
	}
	if _, again := r.refused[name]; !again {
		r.log.ErrorContext(ctx, "failed to record the mode of a mesh, retrying", "mesh", name, "err", err)
	}
	r.refused[name] = refusedRecord{spec, err}
}

// pass updates the Builder.
func (r *Recorder) pass(name string, spec *mesh.MeshSpec) {
	m := &mesh.Mesh{Name: name, Recorded: true}
	if spec == nil {
		r.builder.Delete(Source, m.Key())
		return
	}
	m.Spec = *spec
	r.builder.Set(Source, m)
}

// Follow loads the record written by a peer.
func (r *Recorder) Follow(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.authority.Recorded()[name]; m != nil {
		r.pass(name, &m.Spec)
	} else {
		r.pass(name, nil)
	}
}

// Run retries failed writes and removes the records of ended meshes until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	if r == nil {
		return
	}
	for range run.Ticks(ctx, recordAgain) {
		r.mu.Lock()
		for name, refused := range maps.Clone(r.refused) {
			r.write(ctx, name, refused.spec)
		}
		r.mu.Unlock()
		r.forgetEnded(ctx, time.Now())
	}
}

// forgetEnded removes the records of meshes that have had no Mesh and no Dataplanes for mesh.EndedAfter. Files are
// restored and pods recreated one by one, so a short absence does not end a mesh.
func (r *Recorder) forgetEnded(ctx context.Context, now time.Time) {
	v := r.builder.View()
	if v == nil {
		return
	}
	bare := map[string]time.Time{}
	for name, m := range v.Meshes {
		if !m.Spec.Recorded || m.Proxies.Len() > 0 || r.emptied() {
			continue
		}
		since, ok := r.bare[name]
		if !ok {
			since = now
		}
		if now.Sub(since) < mesh.EndedAfter {
			bare[name] = since
			continue
		}
		r.log.InfoContext(ctx, "removing the record of a mesh without Mesh and Dataplanes",
			"mesh", name, "for", now.Sub(since))
		r.keep(ctx, name, nil)
	}
	r.bare = bare
}

// Check returns the meshes without their Mesh, and the failed writes.
func (r *Recorder) Check(v *meshview.View) error {
	if v == nil {
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(v.Meshes)) {
		if m := v.Meshes[name]; m.Spec.Recorded {
			errs = append(errs, m.Spec.LostError())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.refused)) {
		errs = append(errs, fmt.Errorf("record mode of mesh %q: %w", name, r.refused[name].err))
	}
	return errors.Join(errs...)
}
