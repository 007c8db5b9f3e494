package objects

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// RunDefaultMesh makes a Mesh named default, PERMISSIVE, if there is no Mesh at all. It is for one replica at a time.
func (s *Objects) RunDefaultMesh(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		names, known := s.Meshes()
		if !known || len(names) > 0 {
			return known, nil
		}
		err := s.createDefaultMesh(ctx)
		if apierrors.IsAlreadyExists(err) {
			return true, nil // somebody else has made it
		}
		if err != nil {
			s.o.Logger.WarnContext(ctx, "default mesh not made: it is tried again", "err", err)
			return false, nil
		}
		s.o.Logger.InfoContext(ctx, "default mesh made, in PERMISSIVE mode")
		return true, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx is how it is meant to end
	}
	return err
}

func (s *Objects) createDefaultMesh(ctx context.Context) error {
	m := &v1alpha1.Mesh{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: string(mesh.KindMesh)},
		ObjectMeta: metav1.ObjectMeta{Name: mesh.DefaultMesh},
		Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{
			EnabledBackend: "ca-1",
			Backends:       []mesh.Backend{{Name: "ca-1", Type: mesh.BackendBuiltin, Mode: mesh.ModePermissive}},
		}},
	}
	if err := s.client.Post().Resource(resourceMeshes).Body(m).Do(ctx).Error(); err != nil {
		return fmt.Errorf("create Mesh %q: %w", m.Name, err)
	}
	return nil
}
