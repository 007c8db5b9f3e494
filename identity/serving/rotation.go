package serving

import (
	"context"
	"slices"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// maxMissed limits the proxies that are kept as missed.
const maxMissed = 1000

// Rotation is the progress of the rotation of the serving CA.
type Rotation struct {
	ca.Progress
	// Proceed says that it does not stop before the new CA signs.
	Proceed bool
	// Missed are the IDs of proxies that may not trust the CA that signs, sorted.
	Missed []string
	// CopiesErr is why the copies for clients in the storage could not be written when that was last tried.
	CopiesErr error
}

// Rotation returns the progress. The Step is ca.StepNone if no rotation is in progress.
func (c *Certificate) Rotation() Rotation {
	s := c.shared.Current()
	r := Rotation{Progress: s.Progress(), Proceed: s.Proceed, Missed: s.Missed}
	if err := c.copiesErr.Load(); err != nil {
		r.CopiesErr = *err
	}
	return r
}

// StartRotation makes a new CA, and starts to replace the old one. It does nothing if a rotation is in progress.
func (c *Certificate) StartRotation(ctx context.Context) error {
	return c.after(ctx, c.shared.Start(ctx, c.newCA))
}

// ForceRotation makes the current rotation not wait for silent proxies, in this step and the following ones.
func (c *Certificate) ForceRotation(ctx context.Context) error {
	return c.after(ctx, c.shared.Force(ctx))
}

// ProceedRotation makes the current rotation go on when all proxies trust both CAs.
func (c *Certificate) ProceedRotation(ctx context.Context) error {
	return c.after(ctx, c.shared.Order(ctx, func(s *state) *state {
		if s.Proceed {
			return nil
		}
		next := s.With(s.Set)
		next.Proceed = true
		return next
	}))
}

// AdvanceRotation goes on to the step after the one of r, which all have done but these proxies, and returns whether it did: not if r is no
// longer the current rotation, or the copies are not written.
func (c *Certificate) AdvanceRotation(ctx context.Context, r Rotation, missed []string) (bool, error) {
	advanced, err := c.shared.Advance(ctx, r.Progress, func(s *state) bool { return c.copied.Load() == s }, func(next *state) {
		if next.Step() == ca.StepRenewLeaves {
			next.Missed = missed[:min(len(missed), maxMissed)]
		}
	})
	if advanced && r.Step == ca.StepTrustBoth && len(missed) > maxMissed {
		c.o.Logger.WarnContext(ctx, "not all proxies are kept that may not trust the new serving CA",
			"all", len(missed), "kept", maxMissed)
	}
	return advanced, c.after(ctx, err)
}

// Forget forgets that a rotation has missed these proxies: they have come back, or are gone.
func (c *Certificate) Forget(ctx context.Context, proxies []string) error {
	_, err := c.shared.Change(ctx, func(s *state) (*state, error) {
		next := s.With(s.Set)
		next.Missed = slices.DeleteFunc(slices.Clone(s.Missed), func(id string) bool { return slices.Contains(proxies, id) })
		if len(next.Missed) == len(s.Missed) {
			return nil, nil
		}
		return next, nil
	})
	return c.after(ctx, err)
}
