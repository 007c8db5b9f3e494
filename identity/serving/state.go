package serving

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// Names in the storage: the CAs with their keys; a copy of the certificates that clients must trust, with the signing
// CA first; and a copy of the signing key. Operators give the certificates to agents and sondectl by --ca-cert-file.
// The first releases stored only the copies, and still work with them.
const (
	stateName = "serving-ca.json"
	caName    = "serving-ca.crt"
	keyName   = "serving-ca.key"
)

// state is the state of the serving CA. It is immutable.
type state struct {
	ca.Kept
	rest
}

// With implements ca.State. A new rotation drops the previous one's state, including its missed proxies.
func (s *state) With(set *ca.Set) *state {
	next := &state{Kept: ca.Kept{Set: set}, rest: s.rest}
	switch {
	case set.Rotation == nil:
		next.Proceed = false
	case s.Rotation == nil:
		next.rest = rest{}
	}
	return next
}

// rest is stored with the CAs.
type rest struct {
	// Proceed means that the rotation continues once all proxies trust both CAs: the operator has replaced the files
	// that had only the old CA.
	Proceed bool `json:"proceed,omitempty"`
	// Missed are the sorted IDs of proxies that the rotation did not wait for when the new CA began to sign: they may
	// not trust it.
	Missed []string `json:"missed,omitempty"`
}

// stateFile is a stored state.
type stateFile struct {
	ca.SetFile
	rest
}

// pem returns the certificates of all trusted CAs.
func (s *state) pem() []byte { return certificates(s.CAs) }

func certificates(cas []*ca.CA) []byte {
	var all bytes.Buffer
	for _, c := range cas {
		certificate, _ := c.Encode()
		all.Write(certificate)
	}
	return all.Bytes()
}

// Encode implements ca.State.
func (s *state) Encode() ([]byte, error) {
	data, err := json.MarshalIndent(stateFile{s.File(), s.rest}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode serving CA: %w", err)
	}
	return data, nil
}

// decodeState is the reverse of state.Encode. Its errors name the field, and never contain keys.
func decodeState(data []byte) (*state, error) {
	var f stateFile
	if err := json.Unmarshal(data, &f); err != nil { // the decoder's error may quote a key
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("%s: invalid %s", wrong.Field, wrong.Value)
		}
		return nil, fmt.Errorf("its %d bytes are not JSON: restore it from a backup", len(data))
	}
	set, err := f.Set()
	if err != nil {
		return nil, err
	}
	for _, id := range f.Missed {
		if _, name := mesh.SplitID(id); name == "" {
			return nil, fmt.Errorf("missed: %.64q: must be the mesh and the name of a proxy, with a slash between them", id)
		}
	}
	return &state{Kept: ca.Kept{Set: set}, rest: f.rest}, nil
}

// create returns the state for an empty storage: the CA of an earlier release, or a new one.
func (c *Certificate) create(ctx context.Context) (*state, error) {
	if set, err := c.earlier(ctx); set != nil || err != nil {
		return &state{Kept: ca.Kept{Set: set}}, err
	}
	only, err := c.newCA()
	if err != nil {
		return nil, err
	}
	return &state{Kept: ca.Kept{Set: ca.NewSet(only, c.o.Now())}}, nil
}

// earlier returns the CA stored by a release without stateName, nil without one.
func (c *Certificate) earlier(ctx context.Context) (*ca.Set, error) {
	certificate, _, err := c.o.Storage.Read(ctx, caName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", caName, err)
	}
	key, _, err := c.o.Storage.Read(ctx, keyName)
	if err != nil {
		return nil, fmt.Errorf("read %s (to create both again, remove %s): %w", keyName, caName, err)
	}
	authority, err := ca.Parse(certificate, key)
	if err == nil && !authority.CanSign() {
		err = errors.New("the key is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("open %s and %s: %w", caName, keyName, err)
	}
	return ca.NewSet(authority, authority.Cert.NotBefore), nil
}

func (c *Certificate) newCA() (*ca.CA, error) {
	return ca.New(&x509.Certificate{Subject: ca.Subject("Sonde control plane CA")}, c.o.Now(), caValidity)
}

// signingFirst returns all CAs, starting with the signing CA: the first releases read only the first one.
func (s *state) signingFirst() []*ca.CA {
	others := slices.DeleteFunc(slices.Clone(s.CAs), func(c *ca.CA) bool { return c == s.Signing })
	return append([]*ca.CA{s.Signing}, others...)
}
