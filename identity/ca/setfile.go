package ca

import (
	"errors"
	"fmt"
	"slices"
)

// maxEpoch leaves room for later epochs.
const maxEpoch = 1 << 53

// SetFile is a stored Set. It is one file, so that each step of a rotation is one atomic write.
type SetFile struct {
	Signing string `json:"signing"`
	// Epoch of the set. The first releases did not write it.
	Epoch    *int64    `json:"epoch,omitempty"`
	CAs      []Entry   `json:"cas"`
	Rotation *Rotation `json:"rotation,omitempty"`
}

// Entry is a stored CA.
type Entry struct {
	ID          string `json:"id"`
	Certificate string `json:"certificate"`
	// Key is removed once the CA no longer signs.
	Key string `json:"key,omitempty"`
}

// File returns the set in its stored form.
func (s *Set) File() SetFile {
	f := SetFile{Signing: s.Signing.ID, Epoch: &s.Epoch, Rotation: s.Rotation}
	for _, c := range s.CAs {
		certificate, key := c.Encode()
		f.CAs = append(f.CAs, Entry{ID: c.ID, Certificate: string(certificate), Key: string(key)})
	}
	return f
}

// Set is the reverse of Set.File. Its errors name the field, and never contain keys.
func (f SetFile) Set() (*Set, error) {
	s := &Set{Rotation: f.Rotation}
	for i, entry := range f.CAs {
		c, err := Parse([]byte(entry.Certificate), []byte(entry.Key))
		if err != nil {
			return nil, fmt.Errorf("cas[%d]: %w", i, err)
		}
		s.CAs = append(s.CAs, c)
		if c.ID == f.Signing {
			s.Signing = c
		}
	}
	if s.Signing == nil {
		return nil, fmt.Errorf("signing: %.64q: must be the ID of one of cas", f.Signing)
	}
	if !s.Signing.CanSign() {
		return nil, fmt.Errorf("cas[%d].key: the key of the CA that signs is missing", slices.Index(s.CAs, s.Signing))
	}
	if err := f.checkRotation(); err != nil {
		return nil, err
	}
	var err error
	s.Epoch, err = f.epoch(s.CAs)
	return s, err
}

func (f SetFile) checkRotation() error {
	if f.Rotation == nil {
		return nil
	}
	switch f.Rotation.Step {
	case StepTrustBoth, StepRenewLeaves, StepTrustNew:
	default:
		return fmt.Errorf("rotation.step: %.64q: must be %q, %q or %q",
			f.Rotation.Step, StepTrustBoth, StepRenewLeaves, StepTrustNew)
	}
	if newest := f.CAs[len(f.CAs)-1]; f.Rotation.Step == StepTrustBoth && newest.Key == "" {
		return errors.New("cas: the last CA must have a key: it signs in the next step")
	}
	return nil
}

// epoch returns the epoch of the file, or for files of the first releases the creation time of the newest CA.
func (f SetFile) epoch(cas []*CA) (int64, error) {
	if f.Epoch == nil {
		var newest int64
		for _, c := range cas {
			newest = max(newest, c.Cert.NotBefore.Unix())
		}
		return newest, nil
	}
	if *f.Epoch <= 0 || *f.Epoch > maxEpoch {
		return 0, fmt.Errorf("epoch: %d: must be from 1 to %d", *f.Epoch, int64(maxEpoch))
	}
	return *f.Epoch, nil
}
