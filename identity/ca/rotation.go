package ca

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrNoRotation means that no rotation is in progress.
var ErrNoRotation = errors.New("no rotation in progress")

// Progress is this process's progress in a rotation of CAs.
type Progress struct {
	// Step is StepNone if no rotation is in progress.
	Step Step
	// Trusted is the ID of the trusted CAs, Epoch their epoch. Signing is the ID of the CA that signs.
	Trusted string
	Epoch   int64
	Signing string
	// Forced means that the rotation does not wait for disconnected clients.
	Forced bool
	// Since is Kept.Since.
	Since time.Time
}

// Progress returns the progress.
func (k *Kept) Progress() Progress {
	forced := k.Rotation != nil && k.Rotation.Forced
	return Progress{Step: k.Step(), Trusted: k.ID(), Epoch: k.Epoch, Signing: k.Signing.ID, Forced: forced, Since: k.Since}
}

// Start starts a rotation to the CA that create returns. It does nothing during a rotation.
func (s *Shared[S]) Start(ctx context.Context, create func() (*CA, error)) error {
	_, err := s.Change(ctx, func(now S) (none S, err error) {
		set := now.kept().Set
		if set.Rotation != nil {
			return none, nil
		}
		next, err := create()
		if err != nil {
			return none, fmt.Errorf("start rotation of %s: %w", s.Name, err)
		}
		return now.With(set.Start(next, s.Now())), nil
	})
	return err
}

// Force makes the current rotation not wait for disconnected clients, in this step and the following ones.
func (s *Shared[S]) Force(ctx context.Context) error {
	return s.Order(ctx, func(now S) (none S) {
		if set := now.kept().Set; !set.Rotation.Forced {
			return now.With(set.Force())
		}
		return none
	})
}

// Order changes a rotation in progress: it stores and uses the state that decide returns; nil means no change.
func (s *Shared[S]) Order(ctx context.Context, decide func(now S) S) error {
	_, err := s.Change(ctx, func(now S) (none S, err error) {
		if now.kept().Rotation == nil {
			return none, fmt.Errorf("%s: %w", s.Name, ErrNoRotation)
		}
		return decide(now), nil
	})
	return err
}

// Advance begins the step after from if done returns true, and reports whether it did. It does nothing if from is not
// the current step. begin may change the state of the next step; nil means no change.
func (s *Shared[S]) Advance(
	ctx context.Context, from Progress, done func(now S) bool, begin func(next S),
) (bool, error) {
	return s.Change(ctx, func(now S) (none S, err error) {
		set := now.kept().Set
		if set.Rotation == nil || set.Step() != from.Step || set.Epoch != from.Epoch || !done(now) {
			return none, nil
		}
		next := now.With(set.Next(s.Now()))
		if begin != nil {
			begin(next)
		}
		return next, nil
	})
}
