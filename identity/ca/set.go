package ca

import (
	"slices"
	"strings"
	"time"
)

// Step of a rotation. It ends when all verifiers have completed it.
type Step string

// The steps, in order. In each step, all clients that have completed the previous one trust each other.
const (
	// StepNone means that no rotation is in progress.
	StepNone Step = ""
	// StepTrustBoth means that both CAs are trusted, and the old one signs.
	StepTrustBoth Step = "trust both"
	// StepRenewLeaves means that the new CA signs.
	StepRenewLeaves Step = "renew leaves"
	// StepTrustNew means that only the new CA is trusted.
	StepTrustNew Step = "trust new"
)

// Rotation is a rotation in progress, as stored.
type Rotation struct {
	Step    Step      `json:"step"`
	Started time.Time `json:"started"`
	// Forced means that it does not wait for disconnected clients.
	Forced bool `json:"forced,omitempty"`
}

// Set has the trusted CAs, one of which signs, and the rotation that replaces the set. It is immutable.
type Set struct {
	// CAs are trusted, the oldest first. Only CAs that may still sign have a key.
	CAs []*CA
	// Signing is one of CAs.
	Signing *CA
	// Rotation is nil without a rotation.
	Rotation *Rotation
	// Epoch grows with each change of the CAs. It is at least the Unix time of the change, so that it exceeds the
	// epochs of lost CAs.
	Epoch int64
}

// NewSet returns a set with one CA, and the time as its epoch.
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

// Force returns the set with a rotation that does not wait for disconnected clients. A rotation must be in progress.
func (s *Set) Force() *Set {
	forced, r := *s, *s.Rotation
	r.Forced = true
	forced.Rotation = &r
	return &forced
}

// Next returns the set of the next step of the rotation, which must be in progress.
func (s *Set) Next(now time.Time) *Set {
	last := len(s.CAs) - 1
	newest, r := s.CAs[last], *s.Rotation
	switch r.Step {
	case StepTrustBoth:
		r.Step = StepRenewLeaves
		trusted := slices.Clone(s.CAs)
		for i, old := range trusted[:last] {
			trusted[i] = old.WithoutKey() // the old CA no longer signs
		}
		return s.with(trusted, newest, &r, now)
	case StepRenewLeaves:
		r.Step = StepTrustNew
		return s.with([]*CA{newest}, newest, &r, now)
	default:
		return s.with(s.CAs, s.Signing, nil, now)
	}
}

// with returns a set with other CAs, one of which signs, and a higher epoch. r is the rotation in progress.
func (s *Set) with(cas []*CA, signing *CA, r *Rotation, now time.Time) *Set {
	next := &Set{CAs: cas, Signing: signing, Rotation: r, Epoch: s.Epoch}
	if next.ID() != s.ID() {
		next.Epoch = max(s.Epoch+1, now.Unix())
	}
	return next
}
