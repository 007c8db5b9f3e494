package identity

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// Bundle is the set of CAs that a mesh trusts. It is immutable.
type Bundle struct {
	// ID is a hash of the roots that does not depend on their order.
	ID string
	// Roots are certificates, DER.
	Roots [][]byte
}

// state is what the authority of a mesh is at one time: the CA that signs, and during a rotation another one that is trusted,
// too. It is immutable.
type state struct {
	td       spiffeid.TrustDomain
	cas      []*ca.CA // trusted CAs, the oldest first; only those that may still sign have a key
	signing  *ca.CA
	rotation *rotation // nil while none is in progress

	// The trusted CAs, in the forms that are needed.
	bundle Bundle
	x509   *x509bundle.Bundle
}

func newState(td spiffeid.TrustDomain, cas []*ca.CA, signing *ca.CA, r *rotation) *state {
	s := &state{td: td, cas: cas, signing: signing, rotation: r}
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

// secret is a state in the storage. It is one file, so that each step of a rotation is one atomic write.
type secret struct {
	Signing  string     `json:"signing"`
	CAs      []caSecret `json:"cas"`
	Rotation *rotation  `json:"rotation,omitempty"`
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

// write writes a state to the storage.
func (a *Authority) write(meshName string, s *state) error {
	f := secret{Signing: s.signing.ID, Rotation: s.rotation}
	for _, c := range s.cas {
		certificate, key := c.Encode()
		f.CAs = append(f.CAs, caSecret{ID: c.ID, Certificate: string(certificate), Key: string(key)})
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", secretPath(meshName), err)
	}
	if err := a.o.Secrets.Write(secretPath(meshName), data); err != nil {
		return fmt.Errorf("write %s: %w", secretPath(meshName), err)
	}
	return nil
}

// read reads what write has written. Its errors never contain keys.
func (a *Authority) read(meshName string) (*state, error) {
	data, err := a.o.Secrets.Read(secretPath(meshName))
	if err != nil {
		return nil, err
	}
	s, err := decodeState(a.trustDomain(meshName), data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", secretPath(meshName), err)
	}
	return s, nil
}

func decodeState(td spiffeid.TrustDomain, data []byte) (*state, error) {
	var f secret
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
	return newState(td, cas, signing, f.Rotation), nil
}
