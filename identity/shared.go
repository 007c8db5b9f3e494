package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// Run follows changes by other processes to the CAs until ctx ends, and then returns nil.
func (a *Authority) Run(ctx context.Context) error {
	return secret.Follow(ctx, a.o.Secrets, func(name string) error {
		meshName, ok := meshOfSecret(name)
		if !ok {
			return nil
		}
		a.o.Loop.Begin()
		defer a.o.Loop.End()
		return a.follow(ctx, meshName)
	}, func(name string, err error) {
		meshName, _ := meshOfSecret(name)
		a.o.Logger.ErrorContext(ctx, "failed to load CA from storage, keeping the one in memory",
			"mesh", meshName, "err", err)
	})
}

// follow loads changes by another process.
func (a *Authority) follow(ctx context.Context, meshName string) error {
	if err := a.openOnce(ctx, meshName, nil); err != nil {
		return err
	}
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	followed, err := m.Follow(ctx)
	if followed && a.o.Followed != nil {
		a.o.Followed(meshName)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("without it, the next start creates another CA, which no proxy trusts: %w", err)
	}
	return err
}

// logStep logs a new step of the rotation.
func (a *Authority) logStep(ctx context.Context, meshName string, before, s *state) {
	if before.Epoch == s.Epoch && reflect.DeepEqual(before.Rotation, s.Rotation) {
		return
	}
	a.o.Logger.InfoContext(ctx, "CA rotation", "mesh", meshName, "step", s.Step(), "bundle", s.bundle.ID,
		"ca", s.Signing.ID)
}
