package serving

import (
	"context"
	"slices"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// maxMissed limits the missed proxies that are stored.
const maxMissed = 1000

// Rotation is the progress of the rotation of the serving CA.
type Rotation struct {
	ca.Progress
	// Proceed means that the rotation does not stop before the new CA signs.
	Proceed bool
	// Missed are the IDs of proxies that may not trust the CA that signs, sorted.
	Missed []string
	// CopiesErr is the error of the last attempt to write the copies for clients to the storage.
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

// StartRotation creates a CA, and starts to replace the old one. It does nothing during a rotation.
func (c *Certificate) StartRotation(ctx context.Context) error {
	return c.after(ctx, c.shared.Start(ctx, c.newCA))
}

// ForceRotation makes the current rotation not wait for silent proxies, in this step and the following ones.
func (c *Certificate) ForceRotation(ctx context.Context) error {
	return c.after(ctx, c.shared.Force(ctx))
}

// ProceedRotation lets the current rotation continue once all proxies trust both CAs.
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

// AdvanceRotation begins the step after the step of r, which all proxies except missed have completed, and reports
// whether it did. It does nothing if r is no longer the current rotation, or if the copies are not written.
func (c *Certificate) AdvanceRotation(ctx context.Context, r Rotation, missed []string) (bool, error) {
	advanced, err := c.shared.Advance(ctx, r.Progress, func(s *state) bool { return c.copied.Load() == s },
		func(next *state) {
			if next.Step() == ca.StepRenewLeaves {
				next.Missed = missed[:min(len(missed), maxMissed)]
			}
		})
	if advanced && r.Step == ca.StepTrustBoth && len(missed) > maxMissed {
		c.o.Logger.WarnContext(ctx, "too many proxies missed the new serving CA, not all are stored",
			"all", len(missed), "kept", maxMissed)
	}
	return advanced, c.after(ctx, err)
}

// Forget drops missed proxies, which have reconnected or no longer exist.
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
