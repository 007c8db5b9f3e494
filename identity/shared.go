package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// maxConflicts is how often a change is decided anew, since another process was faster.
const maxConflicts = 5

// Run follows what other processes do to the CAs until ctx ends, and then returns nil.
func (a *Authority) Run(ctx context.Context) error {
	return a.o.Secrets.Watch(ctx, func(name string) {
		meshName, ok := meshOfSecret(name)
		if !ok {
			return
		}
		a.o.Loop.Begin()
		defer a.o.Loop.End()
		if err := a.follow(ctx, meshName); err != nil && ctx.Err() == nil {
			a.o.Logger.ErrorContext(ctx, "CA in storage not used", "mesh", meshName, "err", err)
		}
	})
}

// follow takes over what another process may have written.
func (a *Authority) follow(ctx context.Context, meshName string) error {
	if err := a.openOnce(ctx, meshName, func(ctx context.Context) error { return a.open(ctx, meshName) }); err != nil {
		return err
	}
	m, err := a.mesh(meshName)
	if err != nil {
		return err
	}
	for {
		before := m.current.Load()
		s, err := a.read(ctx, meshName)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it was removed, and is still used here: without it the next start makes another CA, which no proxy trusts: %w", err)
		}
		if err == nil {
			err = s.Follows(before.Set)
		}
		if err != nil {
			return err
		}
		followed, done := a.replace(ctx, m, before, s)
		if followed && a.o.Followed != nil {
			a.o.Followed(meshName) // not with the lock of a step: it may make the next one
		}
		if done {
			return nil
		}
	}
}

// replace makes a state that was read from the storage the current one, and returns whether that was another one. It is not done if there is another
// one than before by now: what was read may be older.
func (a *Authority) replace(ctx context.Context, m *meshAuthority, before, s *state) (followed, done bool) {
	m.step.Lock()
	defer m.step.Unlock()
	if m.current.Load() != before {
		return false, false
	}
	if s.version == before.version {
		return false, true
	}
	a.put(m, s)
	a.logStep(ctx, m.mesh, s)
	return true, true
}

// change puts the state that decide makes of the current one into the storage, and then into use. decide returns nil if there is
// nothing to change. It is asked again if another process has changed the state meanwhile. change returns whether it changed something.
func (a *Authority) change(ctx context.Context, m *meshAuthority, decide func(*state) (*state, error)) (bool, error) {
	m.step.Lock()
	defer m.step.Unlock()
	for range maxConflicts {
		now := m.current.Load()
		s, err := decide(now)
		if err != nil || s == nil {
			return false, err
		}
		s.longest = max(s.longest, now.longest)
		err = a.update(ctx, m.mesh, s, now.version)
		if err == nil {
			a.put(m, s)
			a.logStep(ctx, m.mesh, s)
			return true, nil
		}
		if !errors.Is(err, secret.ErrConflict) {
			return false, fmt.Errorf("change CA of mesh %q: %w", m.mesh, err)
		}
		if s, err = a.read(ctx, m.mesh); err == nil {
			err = s.Follows(now.Set)
		}
		if err != nil {
			return false, fmt.Errorf("change CA of mesh %q: %w", m.mesh, err)
		}
		a.put(m, s)
	}
	return false, fmt.Errorf("change CA of mesh %q: %d other writers were faster: %w", m.mesh, maxConflicts, secret.ErrConflict)
}

// update replaces this version of a state in the storage, and sets the new one.
func (a *Authority) update(ctx context.Context, meshName string, s *state, version string) error {
	data, err := s.encode()
	if err != nil {
		return err
	}
	s.version, err = a.o.Secrets.Update(ctx, secretPath(meshName), data, version)
	return err
}

func (a *Authority) logStep(ctx context.Context, meshName string, s *state) {
	a.o.Logger.InfoContext(ctx, "CA rotation", "mesh", meshName, "step", s.Step(), "bundle", s.bundle.ID, "ca", s.Signing.ID)
}
