package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// Bundle is the set of CAs that a mesh trusts. It is immutable.
type Bundle struct {
	// ID is a hash of the roots that does not depend on their order.
	ID string
	// Roots are certificates, DER.
	Roots [][]byte
	// Epoch grows with each change of the roots, so that the holder of a bundle knows whether another one is older: it is at least the Unix time of
	// the change, which is more than those of a CA that was lost.
	Epoch int64
}

// state is what the authority of a mesh is at one time: the CA that signs, and during a rotation another one that is trusted,
// too. It is immutable.
type state struct {
	td       spiffeid.TrustDomain
	cas      []*ca.CA // trusted CAs, the oldest first; only those that may still sign have a key
	signing  *ca.CA
	rotation *rotation // nil while none is in progress
	// longest is the longest validity that a certificate of this mesh may have.
	longest time.Duration
	// version of the storage, and since when this process has used it.
	version string
	since   time.Time

	// The trusted CAs, in the forms that are needed.
	bundle Bundle
	x509   *x509bundle.Bundle
}

func newState(td spiffeid.TrustDomain, cas []*ca.CA, signing *ca.CA, r *rotation, epoch int64) *state {
	s := &state{td: td, cas: cas, signing: signing, rotation: r, longest: mesh.DefaultCertValidity}
	s.bundle.Epoch = epoch
	roots := make([]*x509.Certificate, len(cas))
	ids := make([]string, len(cas))
	for i, c := range cas {
		roots[i], ids[i] = c.Cert, c.ID
		s.bundle.Roots = append(s.bundle.Roots, c.Cert.Raw)
	}
	slices.Sort(ids)
	s.bundle.ID = ca.Fingerprint([]byte(strings.Join(ids, "")))
	s.x509 = x509bundle.FromX509Authorities(td, roots)
	return s
}

// with returns the state with other CAs, of which one signs, and with what is in progress then. Other roots have a higher epoch.
func (s *state) with(cas []*ca.CA, signing *ca.CA, r *rotation, now time.Time) *state {
	next := newState(s.td, cas, signing, r, s.bundle.Epoch)
	if next.bundle.ID != s.bundle.ID {
		next.bundle.Epoch = max(s.bundle.Epoch+1, now.Unix())
	}
	return next
}

// follows returns an error if s, which was read from the storage, is older than what this process has used. A restored backup would take
// roots from proxies that trust them.
func (s *state) follows(before *state) error {
	if s.bundle.Epoch < before.bundle.Epoch {
		return fmt.Errorf("epoch: %d: must be at least %d, the epoch in use; to use a CA that was restored, restart the control plane and rotate the CA",
			s.bundle.Epoch, before.bundle.Epoch)
	}
	return nil
}

// secretState is a state in the storage. It is one file, so that each step of a rotation is one atomic write.
type secretState struct {
	Signing string `json:"signing"`
	// Epoch of the bundle; earlier releases did not write it.
	Epoch    *int64     `json:"epoch,omitempty"`
	CAs      []caSecret `json:"cas"`
	Rotation *rotation  `json:"rotation,omitempty"`
	// LongestSeconds is state.longest, if that is not mesh.DefaultCertValidity.
	LongestSeconds int64 `json:"longestSeconds,omitempty"`
}

type caSecret struct {
	ID          string `json:"id"`
	Certificate string `json:"certificate"`
	// Key is removed once the CA no longer signs.
	Key string `json:"key,omitempty"`
}

// meshesDirectory has a directory for each mesh, with its secret and its records.
const meshesDirectory = "meshes"

func secretPath(meshName string) string { return path.Join(meshesDirectory, meshName, "ca.json") }

// meshOfSecret is the reverse of secretPath. It returns false for the name of another secret.
func meshOfSecret(name string) (string, bool) {
	meshName := path.Base(path.Dir(name))
	return meshName, checkMesh(meshName) == nil && secretPath(meshName) == name
}

// encode returns a state as it is in the storage.
func (s *state) encode() ([]byte, error) {
	f := secretState{Signing: s.signing.ID, Epoch: &s.bundle.Epoch, Rotation: s.rotation}
	if s.longest != mesh.DefaultCertValidity {
		f.LongestSeconds = int64(s.longest / time.Second)
	}
	for _, c := range s.cas {
		certificate, key := c.Encode()
		f.CAs = append(f.CAs, caSecret{ID: c.ID, Certificate: string(certificate), Key: string(key)})
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode CA: %w", err)
	}
	return data, nil
}

// read returns what is in the storage. Its errors never contain keys.
func (a *Authority) read(ctx context.Context, meshName string) (*state, error) {
	data, version, err := a.o.Secrets.Read(ctx, secretPath(meshName))
	if err != nil {
		return nil, err
	}
	s, err := decodeState(a.trustDomain(meshName), data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", secretPath(meshName), err)
	}
	s.version = version
	return s, nil
}

func decodeState(td spiffeid.TrustDomain, data []byte) (*state, error) {
	var f secretState
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, errors.New("it is not what was written")
	}
	var cas []*ca.CA
	var signing *ca.CA
	for _, entry := range f.CAs {
		c, err := ca.Parse([]byte(entry.Certificate), []byte(entry.Key))
		if err != nil {
			return nil, err
		}
		if len(c.Cert.URIs) != 1 || c.Cert.URIs[0].Host != td.Name() {
			return nil, fmt.Errorf("its CA is not of trust domain %q; was the trust domain of the control plane changed?", td.Name())
		}
		cas = append(cas, c)
		if c.ID == f.Signing {
			signing = c
		}
	}
	if signing == nil || !signing.CanSign() {
		return nil, errors.New("the key of the CA that signs is missing")
	}
	epoch, err := epochOf(f.Epoch, cas)
	if err != nil {
		return nil, err
	}
	s := newState(td, cas, signing, f.Rotation, epoch)
	s.longest = max(s.longest, time.Duration(f.LongestSeconds)*time.Second)
	return s, nil
}

// maxEpoch leaves room to grow.
const maxEpoch = 1 << 53

// epochOf returns the epoch that was read. That of an earlier release is when its newest CA was made.
func epochOf(read *int64, cas []*ca.CA) (int64, error) {
	if read == nil {
		var newest int64
		for _, c := range cas {
			newest = max(newest, c.Cert.NotBefore.Unix())
		}
		return newest, nil
	}
	if *read <= 0 || *read > maxEpoch {
		return 0, fmt.Errorf("epoch: %d: must be from 1 to %d", *read, int64(maxEpoch))
	}
	return *read, nil
}
