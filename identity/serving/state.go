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

// Names in the storage: the CAs with their keys, and copies of what clients trust, the CA that signs first, and of its key. Operators give the
// certificates to agents and sondectl by --ca-cert-file. The first releases had nothing but the copies, and can go on with them.
const (
	stateName = "serving-ca.json"
	caName    = "serving-ca.crt"
	keyName   = "serving-ca.key"
)

// state is what the serving CA is at one time. It is immutable.
type state struct {
	ca.Kept
	rest
}

// With implements ca.State. A new rotation forgets what was of another one: the proxies that it missed have had their
// time.
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

// rest is what is kept beside the CAs.
type rest struct {
	// Proceed says that the rotation goes on when all proxies trust both CAs: the operator has replaced files with the old one alone.
	Proceed bool `json:"proceed,omitempty"`
	// Missed are the IDs of proxies that the rotation did not wait for when the new CA began to sign, sorted: they may not trust it.
	Missed []string `json:"missed,omitempty"`
}

// stateFile is a state in the storage.
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
	if err := json.Unmarshal(data, &f); err != nil { // its error may quote a key
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("%s: a %s is not what was written", wrong.Field, wrong.Value)
		}
		return nil, fmt.Errorf("its %d bytes are not JSON, so not what was written: restore it from a backup", len(data))
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

// create returns the state of a storage that has none: what an earlier release has left there, or a new CA.
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

// earlier returns the CA that a release without stateName has kept, nil if there is none.
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
		return nil, fmt.Errorf("read %s (to make both anew, remove %s): %w", keyName, caName, err)
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

// signingFirst returns the CAs as the first releases need them: they read the first one.
func (s *state) signingFirst() []*ca.CA {
	others := slices.DeleteFunc(slices.Clone(s.CAs), func(c *ca.CA) bool { return c == s.Signing })
	return append([]*ca.CA{s.Signing}, others...)
}
