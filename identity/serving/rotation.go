package serving

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// maxMissed limits the proxies that are kept as missed.
const maxMissed = 1000

var errNoRotation = errors.New("no rotation of the serving CA in progress")

// Rotation is the progress of the rotation of the serving CA.
type Rotation struct {
	Step ca.Step
	// Trusted is the ID of the CAs that clients are to trust in this step, Epoch their epoch.
	Trusted string
	Epoch   int64
	// Signing is the ID of the CA that signs.
	Signing string
	// Forced says that it does not wait for silent proxies, Proceed that it does not stop before the new CA signs.
	Forced, Proceed bool
	// Missed are the IDs of proxies that may not trust the CA that signs, sorted.
	Missed []string
	// Since is when this process began to use the step.
	Since time.Time
	// CopiesErr is why the copies for clients in the storage could not be written when that was last tried.
	CopiesErr error
}

// Rotation returns the progress. The Step is ca.StepNone if no rotation is in progress.
func (c *Certificate) Rotation() Rotation {
	s := c.current.Load()
	r := Rotation{Step: s.Step(), Trusted: s.ID(), Epoch: s.Epoch, Signing: s.Signing.ID, Proceed: s.Proceed, Missed: s.Missed, Since: s.since}
	r.Forced = s.Rotation != nil && s.Rotation.Forced
	if err := c.copiesErr.Load(); err != nil {
		r.CopiesErr = *err
	}
	return r
}

// StartRotation makes a new CA, and starts to replace the old one. It does nothing if a rotation is in progress.
func (c *Certificate) StartRotation(ctx context.Context) error {
	_, err := c.change(ctx, func(s *state) (*state, error) {
		if s.Rotation != nil {
			return nil, nil
		}
		next, err := c.newCA()
		if err != nil {
			return nil, fmt.Errorf("start rotation of the serving CA: %w", err)
		}
		return &state{Set: s.Start(next, c.o.Now())}, nil // the proxies that another rotation has missed have had their time
	})
	return err
}

// ForceRotation makes the current rotation not wait for silent proxies, in this step and the following ones.
func (c *Certificate) ForceRotation(ctx context.Context) error {
	return c.order(ctx, func(s *state) bool { return s.Rotation.Forced }, func(s *state) { s.Set = s.Force() })
}

// ProceedRotation makes the current rotation go on when all proxies trust both CAs.
func (c *Certificate) ProceedRotation(ctx context.Context) error {
	return c.order(ctx, func(s *state) bool { return s.Proceed }, func(s *state) { s.Proceed = true })
}

// order changes what was said of the rotation in progress, unless it was said already.
func (c *Certificate) order(ctx context.Context, said func(*state) bool, say func(*state)) error {
	_, err := c.change(ctx, func(s *state) (*state, error) {
		if s.Rotation == nil {
			return nil, errNoRotation
		}
		if said(s) {
			return nil, nil
		}
		next := *s
		say(&next)
		return &next, nil
	})
	return err
}

// AdvanceRotation goes on to the step after the one of r, which all have done but these proxies, and returns whether it did: not if r is no
// longer the current rotation, or the copies are not written.
func (c *Certificate) AdvanceRotation(ctx context.Context, r Rotation, missed []string) (bool, error) {
	return c.change(ctx, func(s *state) (*state, error) {
		if s.Rotation == nil || s.Step() != r.Step || s.Epoch != r.Epoch || c.copied.Load() != s {
			return nil, nil
		}
		next := &state{Set: s.Next(c.o.Now()), rest: s.rest}
		if next.Signing != s.Signing {
			next.Missed = missed
			if len(missed) > maxMissed {
				c.o.Logger.WarnContext(ctx, "not all proxies are kept that may not trust the new serving CA", "all", len(missed), "kept", maxMissed)
				next.Missed = missed[:maxMissed]
			}
		}
		if next.Rotation == nil {
			next.Proceed = false
		}
		return next, nil
	})
}

// Forget forgets that a rotation has missed these proxies: they have come back, or are gone.
func (c *Certificate) Forget(ctx context.Context, proxies []string) error {
	_, err := c.change(ctx, func(s *state) (*state, error) {
		next := *s
		next.Missed = slices.DeleteFunc(slices.Clone(s.Missed), func(id string) bool { return slices.Contains(proxies, id) })
		if len(next.Missed) == len(s.Missed) {
			return nil, nil
		}
		return &next, nil
	})
	return err
}
