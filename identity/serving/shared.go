package serving

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// maxConflicts limits the attempts to write a copy that other processes change.
const maxConflicts = 5

// Run follows changes by other processes to the serving CA until ctx ends, and then returns nil.
func (c *Certificate) Run(ctx context.Context) error {
	return secret.Follow(ctx, c.o.Storage, func(name string) error {
		if name != stateName && name != caName && name != keyName {
			return nil
		}
		c.o.Loop.Begin()
		defer c.o.Loop.End()
		return c.follow(ctx)
	}, func(_ string, err error) {
		c.o.Logger.ErrorContext(ctx, "failed to load serving CA from storage, keeping the one in memory", "err", err)
	})
}

// follow loads changes by another process, and rewrites copies that it may have changed.
func (c *Certificate) follow(ctx context.Context) error {
	if _, err := c.shared.Follow(ctx); err != nil {
		return err
	}
	c.copying.Lock()
	defer c.copying.Unlock()
	return c.writeCopies(ctx)
}

// used logs a change of the state, and notifies those who wait for one. It is not called for the first state.
func (c *Certificate) used(ctx context.Context, _, s *state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, changed := range c.changed {
		changed.Set()
	}
	c.o.Logger.InfoContext(ctx, "serving CA rotation", "step", s.Step(), "trusted", s.ID(), "ca", s.Signing.ID)
}

// CatchUp writes copies whose last write failed. Call it periodically.
func (c *Certificate) CatchUp(ctx context.Context) error { return c.after(ctx, nil) }

// after writes the copies after a successful change, including copies whose last write failed.
func (c *Certificate) after(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	c.copying.Lock()
	defer c.copying.Unlock()
	if c.copied.Load() == c.shared.Current() {
		return nil
	}
	return c.writeCopies(ctx)
}

// writeCopies writes the copies that differ from the current state. A process with an old state may write old copies,
// and rewrites them once it has loaded the new state. The caller holds copying.
func (c *Certificate) writeCopies(ctx context.Context) error {
	s := c.shared.Current()
	_, key := s.Signing.Encode()
	for name, want := range map[string][]byte{caName: certificates(s.signingFirst()), keyName: key} {
		if err := writeCopy(ctx, c.o.Storage, name, want); err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
			c.copied.Store(nil)
			c.copiesErr.Store(&err)
			return err
		}
	}
	c.copied.Store(s)
	c.copiesErr.Store(nil)
	return nil
}

func writeCopy(ctx context.Context, storage secret.Shared, name string, want []byte) error {
	for range maxConflicts {
		is, version, err := storage.Read(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			_, err = storage.Create(ctx, name, want)
		case err == nil && !bytes.Equal(is, want):
			_, err = storage.Update(ctx, name, want, version)
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, secret.ErrConflict) {
			return err
		}
	}
	return secret.ErrConflict
}
