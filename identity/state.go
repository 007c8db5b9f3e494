package identity

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
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
	// Epoch grows with each change of the roots, so that the holder of a bundle knows whether another one is older: it is at least the Unix time of
	// the change, which is more than those of a CA that was lost.
	Epoch int64
}

// state is what the authority of a mesh is at one time: the CA that signs, and during a rotation another one that is trusted,
// too. It is immutable.
type state struct {
	*ca.Set
	td spiffeid.TrustDomain
	// longest is the longest validity that a certificate of this mesh may have.
	longest time.Duration
	// version of the storage, and since when this process has used it.
	version string
	since   time.Time

	// The trusted CAs, in the forms that are needed.
	bundle Bundle
	x509   *x509bundle.Bundle
}

func newState(td spiffeid.TrustDomain, cas *ca.Set) *state {
	s := &state{Set: cas, td: td, longest: mesh.DefaultCertValidity, bundle: Bundle{ID: cas.ID(), Epoch: cas.Epoch}}
	roots := make([]*x509.Certificate, len(cas.CAs))
	for i, c := range cas.CAs {
		roots[i] = c.Cert
		s.bundle.Roots = append(s.bundle.Roots, c.Cert.Raw)
	}
	s.x509 = x509bundle.FromX509Authorities(td, roots)
	return s
}

// with returns the state with other CAs, or another rotation.
func (s *state) with(cas *ca.Set) *state { return newState(s.td, cas) }

// secretState is a state in the storage.
type secretState struct {
	ca.SetFile
	// LongestSeconds is state.longest, if that is not mesh.DefaultCertValidity.
	LongestSeconds int64 `json:"longestSeconds,omitempty"`
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
	f := secretState{SetFile: s.File()}
	if s.longest != mesh.DefaultCertValidity {
		f.LongestSeconds = int64(s.longest / time.Second)
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
	cas, err := f.Set()
	if err != nil {
		return nil, err
	}
	for _, c := range cas.CAs {
		if len(c.Cert.URIs) != 1 || c.Cert.URIs[0].Host != td.Name() {
			return nil, fmt.Errorf("its CA is not of trust domain %q; was the trust domain of the control plane changed?", td.Name())
		}
	}
	s := newState(td, cas)
	s.longest = max(s.longest, time.Duration(f.LongestSeconds)*time.Second)
	return s, nil
}
