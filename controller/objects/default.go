package objects

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// DefaultMeshMade is the name of the Secret that records that the Mesh named default was created once, so that it is
// not created again after an operator has deleted it. It is a Secret because the control plane may write Secrets
// anyway.
const DefaultMeshMade = "sonde-default-mesh-made"

// RunDefaultMesh creates a Mesh named default, in PERMISSIVE mode, once per installation. Pods that name no mesh belong
// to it, whatever other Meshes exist. Only one replica may run it.
func (s *Objects) RunDefaultMesh(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		err := s.makeDefaultMesh(ctx)
		if err != nil && ctx.Err() == nil {
			s.o.Logger.WarnContext(ctx, "default mesh not created, retrying", "err", err)
		}
		return err == nil, nil
	})
	if ctx.Err() != nil {
		return nil //nolint:nilerr // only the end of ctx ends it
	}
	return err
}

func (s *Objects) makeDefaultMesh(ctx context.Context) error {
	_, err := s.o.Secrets.Get(ctx, DefaultMeshMade, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return err //nolint:wrapcheck // it names the Secret
	}
	if s.o.Recorded()[mesh.DefaultMesh] != nil { // a lost Secret must not make a STRICT mesh PERMISSIVE
		return nil
	}
	err = s.createDefaultMesh(ctx)
	if err == nil {
		s.o.Logger.InfoContext(ctx, "default mesh created, in PERMISSIVE mode")
	} else if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = s.o.Secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: DefaultMeshMade}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // created by an earlier leader
	}
	return err //nolint:wrapcheck // it names the Secret
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
