package serving

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// maxConflicts is how often a change is decided anew, since another process was faster.
const maxConflicts = 5

// Run follows what other processes do to the serving CA until ctx ends, and then returns nil.
func (c *Certificate) Run(ctx context.Context) error {
	return c.o.Storage.Watch(ctx, func(name string) {
		if name != stateName && name != caName && name != keyName {
			return
		}
		c.o.Loop.Begin()
		defer c.o.Loop.End()
		if err := c.follow(ctx); err != nil && ctx.Err() == nil {
			c.o.Logger.ErrorContext(ctx, "serving CA in storage not used", "err", err)
		}
	})
}

// follow takes over what another process may have written.
func (c *Certificate) follow(ctx context.Context) error {
	c.step.Lock()
	defer c.step.Unlock()
	if err := c.reload(ctx); err != nil {
		return err
	}
	return c.writeCopies(ctx)
}

// reload takes over what is in the storage. step is held.
func (c *Certificate) reload(ctx context.Context) error {
	s, err := c.read(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it was removed, and is still used here: %w", err)
	}
	if err == nil {
		if err = s.Follows(c.current.Load().Set); err != nil {
			err = fmt.Errorf("read %s: %w", stateName, err)
		}
	}
	if err != nil {
		return err
	}
	if s.version != c.current.Load().version {
		c.put(s)
		c.logStep(ctx, s)
	}
	return nil
}

// change puts the state that decide makes of the current one into the storage, and then into use. decide returns nil if there is
// nothing to change. It is asked again if another process has changed the state meanwhile. change returns whether it changed something.
func (c *Certificate) change(ctx context.Context, decide func(*state) (*state, error)) (bool, error) {
	c.step.Lock()
	defer c.step.Unlock()
	for range maxConflicts {
		now := c.current.Load()
		s, err := decide(now)
		if err != nil {
			return false, err
		}
		if s == nil {
			return false, c.catchUp(ctx)
		}
		data, err := s.encode()
		if err != nil {
			return false, err
		}
		s.version, err = c.o.Storage.Update(ctx, stateName, data, now.version)
		if err == nil {
			c.put(s)
			c.logStep(ctx, s)
			return true, c.writeCopies(ctx)
		}
		if !errors.Is(err, secret.ErrConflict) {
			return false, fmt.Errorf("change %s: %w", stateName, err)
		}
		if err := c.reload(ctx); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("change %s: %d other writers were faster: %w", stateName, maxConflicts, secret.ErrConflict)
}

// catchUp writes copies that could not be written when the state changed.
func (c *Certificate) catchUp(ctx context.Context) error {
	if c.copied.Load() == c.current.Load() {
		return nil
	}
	return c.writeCopies(ctx)
}

// put makes a state that is in the storage the current one.
func (c *Certificate) put(s *state) {
	before := c.current.Load()
	s.since = c.o.Now()
	if before != nil && before.Step() == s.Step() && before.Epoch == s.Epoch {
		s.since = before.since
	}
	c.current.Store(s)
	if before == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, changed := range c.changed {
		select {
		case changed <- struct{}{}:
		default: // the last change was not yet seen
		}
	}
}

func (c *Certificate) logStep(ctx context.Context, s *state) {
	c.o.Logger.InfoContext(ctx, "serving CA rotation", "step", s.Step(), "trusted", s.ID(), "ca", s.Signing.ID)
}
