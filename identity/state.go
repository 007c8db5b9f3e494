package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
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
	// Epoch grows with each change of the roots, so that the holder of a bundle can tell which one is older. It is at
	// least the Unix time of the change, so that it exceeds the epochs of a lost CA.
	Epoch int64
}

// state is the state of a mesh's authority: the CA that signs and, during a rotation, another trusted one. It is
// immutable.
type state struct {
	ca.Kept
	td spiffeid.TrustDomain
	// longest is the longest validity of any certificate of this mesh.
	longest time.Duration
	// recorded is the last spec of the Mesh, nil without mTLS.
	recorded *mesh.MeshSpec

	// Other representations of the trusted CAs.
	bundle Bundle
	x509   *x509bundle.Bundle
}

// BundleOf returns the bundle of a set.
func BundleOf(set *ca.Set) Bundle {
	b := Bundle{ID: set.ID(), Epoch: set.Epoch}
	for _, c := range set.CAs {
		b.Roots = append(b.Roots, c.Cert.Raw)
	}
	return b
}

func newState(td spiffeid.TrustDomain, set *ca.Set) *state {
	s := &state{Kept: ca.Kept{Set: set}, td: td, longest: mesh.DefaultCertValidity, bundle: BundleOf(set)}
	roots := make([]*x509.Certificate, len(set.CAs))
	for i, c := range set.CAs {
		roots[i] = c.Cert
	}
	s.x509 = x509bundle.FromX509Authorities(td, roots)
	return s
}

// With implements ca.State.
func (s *state) With(set *ca.Set) *state {
	next := newState(s.td, set)
	next.longest, next.recorded = s.longest, s.recorded
	return next
}

// secretState is a stored state.
type secretState struct {
	ca.SetFile
	// LongestSeconds is state.longest, if that is not mesh.DefaultCertValidity.
	LongestSeconds int64 `json:"longestSeconds,omitempty"`
	// Mesh is state.recorded.
	Mesh *mesh.MeshSpec `json:"mesh,omitempty"`
}

// meshesDirectory contains a directory for each mesh, with its secret and records.
const meshesDirectory = "meshes"

func secretPath(meshName string) string { return path.Join(meshesDirectory, meshName, "ca.json") }

// meshOfSecret is the reverse of secretPath. It returns false for the name of another secret.
func meshOfSecret(name string) (string, bool) {
	meshName := path.Base(path.Dir(name))
	return meshName, checkMesh(meshName) == nil && secretPath(meshName) == name
}

// Encode implements ca.State.
func (s *state) Encode() ([]byte, error) {
	f := secretState{SetFile: s.File(), Mesh: s.recorded}
	if s.longest != mesh.DefaultCertValidity {
		f.LongestSeconds = int64(s.longest / time.Second)
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode CA: %w", err)
	}
	return data, nil
}

// CheckKept returns an error about CAs in use that are missing in the storage.
func (a *Authority) CheckKept(ctx context.Context) error {
	var errs []error
	for _, name := range a.Meshes() {
		_, _, err := a.o.Secrets.Read(ctx, secretPath(name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf(
				"%s was removed, the CA in memory remains in use: restore the file, or the next start creates another CA, which no proxy trusts", secretPath(name)))
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// decodeState is the reverse of state.Encode. Its errors never contain keys.
func (a *Authority) decodeState(meshName string, data []byte) (*state, error) {
	var f secretState
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf(
			"its %d bytes are invalid: restore it from a backup; without one, remove it, and let all proxies join again",
			len(data))
	}
	cas, err := f.Set()
	if err != nil {
		return nil, err
	}
	td := a.trustDomain(meshName)
	for _, c := range cas.CAs {
		if len(c.Cert.URIs) != 1 || c.Cert.URIs[0].Host != td.Name() {
			return nil, fmt.Errorf("its CA is not of trust domain %q; was the trust domain of the control plane changed?",
				td.Name())
		}
	}
	s := newState(td, cas)
	s.longest = max(s.longest, time.Duration(f.LongestSeconds)*time.Second)
	s.recorded = f.Mesh
	return s, checkRecorded(meshName, s.recorded)
}
