package rotation

import (
	"cmp"
	"context"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
)

// servingCA is the serving CA. Proxies of all meshes take part, and so do unknown clients: the operator ends the first
// step for them.
type servingCA struct{ o *Options }

func (s servingCA) progress() (progress, error) {
	r := s.o.ServingCA.Rotation()
	p := progress{Progress: r.Progress, held: r.Step == ca.StepTrustBoth && !r.Proceed, known: true, serving: r}
	if r.Step == ca.StepTrustBoth || r.Step == ca.StepTrustNew { // the step between them needs nothing from proxies
		p.waiting, p.known = s.waiting(r)
	}
	return p, nil
}

// waiting returns the proxies with a valid certificate whose agents have not reported the CAs to be trusted, sorted,
// and false while the proxies are unknown.
func (s servingCA) waiting(r serving.Rotation) (all []proxy, known bool) {
	for _, meshName := range s.o.Authority.Meshes() {
		holders, known := s.o.Authority.Holders(meshName, r.Since)
		if !known {
			return nil, false
		}
		for _, h := range holders {
			if h.ServingCA != r.Trusted && s.o.Now().Before(h.Expires) {
				all = append(all, proxy{meshName, h.Dataplane, h.Expires})
			}
		}
	}
	slices.SortFunc(all, func(x, y proxy) int {
		return cmp.Or(cmp.Compare(x.mesh, y.mesh), cmp.Compare(x.name, y.name))
	})
	return all, true
}

func (s servingCA) start(ctx context.Context, force, proceed bool) error {
	err := s.o.ServingCA.StartRotation(ctx)
	if err == nil && force {
		err = s.o.ServingCA.ForceRotation(ctx)
	}
	if err == nil && proceed {
		err = s.o.ServingCA.ProceedRotation(ctx)
	}
	return err
}

func (s servingCA) others(ctx context.Context, p progress) []string {
	var others []string
	if err := p.serving.CopiesErr; err != nil {
		others = append(others, err.Error())
	}
	for _, wait := range s.o.ServingWaits {
		others = append(others, wait(ctx, p.serving)...)
	}
	return others
}

func (s servingCA) advance(ctx context.Context, p progress) (bool, error) {
	var missed []mesh.ID
	if p.Step == ca.StepTrustBoth {
		missed = s.missing(p.serving)
	}
	return s.o.ServingCA.AdvanceRotation(ctx, p.serving, missed)
}

// missing returns the proxies with a Dataplane that have not reported the CAs to be trusted, sorted.
func (s servingCA) missing(r serving.Rotation) []mesh.ID {
	var missing []mesh.ID
	v := s.o.View()
	for _, meshName := range s.o.Authority.Meshes() {
		holders, _ := s.o.Authority.Holders(meshName, r.Since)
		for _, h := range holders {
			id := mesh.MakeID(meshName, h.Dataplane)
			if _, p := v.Proxy(id); p != nil && h.ServingCA != r.Trusted {
				missing = append(missing, id)
			}
		}
	}
	slices.Sort(missing)
	return missing
}

func (s servingCA) failed(ctx context.Context, err error) {
	s.o.Logger.ErrorContext(ctx, "serving CA rotation failed", "err", err)
}

func (s servingCA) loaded(of *peerv1.Replica) *peerv1.Authority { return of.GetServingCa() }

func (s servingCA) shown(p proxy) *adminv1.Waiting {
	id := p.id()
	outdated := s.o.Sessions.Connected(id) && !s.o.Sessions.TakesServingCA(id)
	return &adminv1.Waiting{Mesh: p.mesh, Name: p.name, Outdated: outdated}
}

// ForgetMissed forgets the proxies that the rotation of the serving CA has missed, once they have reconnected or are
// removed.
func (t *Rotations) ForgetMissed(ctx context.Context) {
	r := t.o.ServingCA.Rotation()
	if len(r.Missed) == 0 || t.o.View() == nil || !t.o.Leads() {
		return
	}
	missing := servingCA{&t.o}.missing(r)
	var back []mesh.ID
	for _, id := range r.Missed {
		if _, away := slices.BinarySearch(missing, id); !away || t.o.Sessions.Connected(id) {
			back = append(back, id)
		}
	}
	if len(back) == 0 {
		return
	}
	if err := t.o.ServingCA.Forget(ctx, back); err != nil {
		t.o.Logger.ErrorContext(ctx,
			"failed to remove reconnected proxies from those that the serving CA rotation missed", "err", err)
	}
}
