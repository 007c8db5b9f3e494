package ca

import (
	"slices"
	"strings"
	"time"
)

// Step of a rotation. It is complete when all who verify certificates of the CAs have done it.
type Step string

// The steps, in order. During each of them, all that have done the step before trust each other.
const (
	// StepNone means that no rotation is in progress.
	StepNone Step = ""
	// StepTrustBoth has the old and the new CA trusted. The old one signs.
	StepTrustBoth Step = "trust both"
	// StepRenewLeaves has the new one sign.
	StepRenewLeaves Step = "renew leaves"
	// StepTrustNew has the new one trusted alone.
	StepTrustNew Step = "trust new"
)

// Rotation is a rotation in progress, as it is in the storage.
type Rotation struct {
	Step    Step      `json:"step"`
	Started time.Time `json:"started"`
	// Forced says that it does not wait for clients that are silent.
	Forced bool `json:"forced,omitempty"`
}

// Set is the CAs that are trusted, one of which signs, and the rotation that replaces it. It is immutable.
type Set struct {
	// CAs that are trusted, the oldest first; only those that may still sign have a key.
	CAs []*CA
	// Signing is one of them.
	Signing *CA
	// Rotation is nil while none is in progress.
	Rotation *Rotation
	// Epoch grows with each change of the CAs: it is at least the Unix time of the change, which is more than those of CAs that were lost.
	Epoch int64
}

// NewSet returns the set of one CA, with the epoch of that time.
func NewSet(only *CA, at time.Time) *Set {
	return &Set{CAs: []*CA{only}, Signing: only, Epoch: at.Unix()}
}

// ID returns a hash of the CAs that does not depend on their order.
func (s *Set) ID() string {
	ids := make([]string, len(s.CAs))
	for i, c := range s.CAs {
		ids[i] = c.ID
	}
	slices.Sort(ids)
	return Fingerprint([]byte(strings.Join(ids, "")))
}

// Step of the rotation.
func (s *Set) Step() Step {
	if s.Rotation == nil {
		return StepNone
	}
	return s.Rotation.Step
}

// Start returns the set of the first step of a rotation to another CA.
func (s *Set) Start(next *CA, now time.Time) *Set {
	return s.with([]*CA{s.Signing, next}, s.Signing, &Rotation{Step: StepTrustBoth, Started: now}, now)
}

// Force returns the set whose rotation, which has to be in progress, does not wait for clients that are silent.
func (s *Set) Force() *Set {
	forced, r := *s, *s.Rotation
	r.Forced = true
	forced.Rotation = &r
	return &forced
}

// Next returns the set of the next step of the rotation, which has to be in progress.
func (s *Set) Next(now time.Time) *Set {
	last := len(s.CAs) - 1
	newest, r := s.CAs[last], *s.Rotation
	switch r.Step {
	case StepTrustBoth:
		r.Step = StepRenewLeaves
		trusted := slices.Clone(s.CAs)
		for i, old := range trusted[:last] {
			trusted[i] = old.WithoutKey() // it no longer signs
		}
		return s.with(trusted, newest, &r, now)
	case StepRenewLeaves:
		r.Step = StepTrustNew
		return s.with([]*CA{newest}, newest, &r, now)
	default:
		return s.with(s.CAs, s.Signing, nil, now)
	}
}

// with returns the set of other CAs, of which one signs, and what is in progress then. Others have a higher epoch.
func (s *Set) with(cas []*CA, signing *CA, r *Rotation, now time.Time) *Set {
	next := &Set{CAs: cas, Signing: signing, Rotation: r, Epoch: s.Epoch}
	if next.ID() != s.ID() {
		next.Epoch = max(s.Epoch+1, now.Unix())
	}
	return next
}
