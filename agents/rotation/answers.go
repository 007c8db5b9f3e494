package rotation

import (
	"context"
	"fmt"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// RotateCA implements adminv1.AdminServiceServer.
func (t *Rotations) RotateCA(ctx context.Context, r *adminv1.RotateCARequest) (*adminv1.Rotation, error) {
	if _, err := t.o.View.Mesh(ctx, r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := t.Mesh(r.GetMesh()).Rotate(ctx, r.GetForce(), false)
	if err != nil {
		return nil, fmt.Errorf("rotate the certificate authority of mesh %q: %w", r.GetMesh(), err)
	}
	caller.Log(ctx, t.o.Logger).InfoContext(ctx, "CA rotation requested", "mesh", r.GetMesh(), "force", r.GetForce(),
		"step", rotation.GetStep().String(), "waiting", len(rotation.GetWaiting()))
	return rotation, nil
}

// GetRotation implements adminv1.AdminServiceServer.
func (t *Rotations) GetRotation(ctx context.Context, r *adminv1.GetRotationRequest) (*adminv1.Rotation, error) {
	if _, err := t.o.View.Mesh(ctx, r.GetMesh()); err != nil {
		return nil, err
	}
	rotation, err := t.Mesh(r.GetMesh()).Progress(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the rotation of mesh %q: %w", r.GetMesh(), err)
	}
	return rotation, nil
}

// RotateServingCA implements adminv1.AdminServiceServer.
func (t *Rotations) RotateServingCA(ctx context.Context, r *adminv1.RotateServingCARequest) (*adminv1.Rotation, error) {
	rotation, err := t.Serving().Rotate(ctx, r.GetForce(), r.GetProceed())
	if err != nil {
		return nil, fmt.Errorf("rotate the serving CA: %w", err)
	}
	caller.Log(ctx, t.o.Logger).InfoContext(ctx, "serving CA rotation requested", "force", r.GetForce(),
		"proceed", r.GetProceed(),
		"step", rotation.GetStep().String(), "waiting", len(rotation.GetWaiting()))
	return rotation, nil
}

// GetServingRotation implements adminv1.AdminServiceServer.
func (t *Rotations) GetServingRotation(
	ctx context.Context, _ *adminv1.GetServingRotationRequest,
) (*adminv1.Rotation, error) {
	rotation, err := t.Serving().Progress(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the rotation of the serving CA: %w", err)
	}
	return rotation, nil
}
