package rotation

import (
	"context"
	"errors"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
)

// meshCA is the CA of a mesh.
type meshCA struct {
	o    *Options
	mesh string
}

// progress is zero for a mesh without a CA. The authority itself does not advance while the proxies are unknown.
func (m meshCA) progress() (progress, error) {
	r, err := m.o.Authority.Rotation(m.mesh)
	if errors.Is(err, identity.ErrCANotFound) {
		return progress{}, nil
	}
	p := progress{Progress: r.Progress, known: true, waiting: make([]proxy, len(r.Waiting))}
	for i, w := range r.Waiting {
		p.waiting[i] = proxy{m.mesh, w.Dataplane, w.Expires}
	}
	return p, err
}

func (m meshCA) start(ctx context.Context, force, _ bool) error {
	var backend *mesh.Backend // nil means the defaults
	if m := m.o.View().Mesh(m.mesh); m != nil {
		backend = m.Spec.Backend()
	}
	if err := m.o.Authority.Ensure(ctx, m.mesh, backend.CAValidity()); err != nil {
		return err
	}
	err := m.o.Authority.StartRotation(ctx, m.mesh, backend.CAValidity())
	if err == nil && force {
		err = m.o.Authority.ForceRotation(ctx, m.mesh)
	}
	return err
}

func (m meshCA) others(context.Context, progress) []string { return nil }

func (m meshCA) advance(ctx context.Context, p progress) (bool, error) {
	silent := map[string]bool{}
	for _, w := range p.waiting {
		silent[w.name] = true
	}
	return m.o.Authority.AdvanceRotation(ctx, m.mesh, p.Progress, silent)
}

func (m meshCA) failed(ctx context.Context, err error) {
	m.o.Logger.ErrorContext(ctx, "CA rotation failed", "mesh", m.mesh, "err", err)
}

func (m meshCA) loaded(of *peerv1.Replica) *peerv1.Authority {
	for _, a := range of.GetAuthorities() {
		if a.GetMesh() == m.mesh {
			return a
		}
	}
	return nil
}

func (m meshCA) shown(p proxy) *adminv1.Waiting { return &adminv1.Waiting{Name: p.name} }
