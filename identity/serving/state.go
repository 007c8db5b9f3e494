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
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/secret"
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
	*ca.Set
	rest
	// version of the storage, and since when this process has used it.
	version string
	since   time.Time
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

func (s *state) encode() ([]byte, error) {
	data, err := json.MarshalIndent(stateFile{s.File(), s.rest}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode serving CA: %w", err)
	}
	return data, nil
}

// decodeState is the reverse of encode. Its errors name the field, and never contain keys.
func decodeState(data []byte) (*state, error) {
	var f stateFile
	if err := json.Unmarshal(data, &f); err != nil { // its error may quote a key
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, fmt.Errorf("%s: a %s is not what was written", wrong.Field, wrong.Value)
		}
		return nil, errors.New("it is not JSON, so not what was written")
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
	return &state{Set: set, rest: f.rest}, nil
}

// read returns what is in the storage. The error wraps fs.ErrNotExist if there is nothing.
func (c *Certificate) read(ctx context.Context) (*state, error) {
	data, version, err := c.o.Storage.Read(ctx, stateName)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	s, err := decodeState(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", stateName, err)
	}
	s.version = version
	return s, nil
}

// open returns what is in the storage. If there is nothing it keeps what an earlier release has left there, or a new CA, unless another process
// is faster.
func (c *Certificate) open(ctx context.Context) (*state, error) {
	s, err := c.read(ctx)
	if !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	set, err := c.earlier(ctx)
	if err == nil && set == nil {
		set, err = c.make()
	}
	if err != nil {
		return nil, err
	}
	s = &state{Set: set}
	data, err := s.encode()
	if err != nil {
		return nil, err
	}
	s.version, err = c.o.Storage.Create(ctx, stateName, data)
	if errors.Is(err, fs.ErrExist) {
		return c.read(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", stateName, err)
	}
	return s, nil
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
	return &ca.Set{CAs: []*ca.CA{authority}, Signing: authority, Epoch: authority.Cert.NotBefore.Unix()}, nil
}

func (c *Certificate) make() (*ca.Set, error) {
	authority, err := c.newCA()
	if err != nil {
		return nil, err
	}
	return &ca.Set{CAs: []*ca.CA{authority}, Signing: authority, Epoch: c.o.Now().Unix()}, nil
}

func (c *Certificate) newCA() (*ca.CA, error) {
	return ca.New(&x509.Certificate{Subject: ca.Subject("Sonde control plane CA")}, c.o.Now(), caValidity)
}

// signingFirst returns the CAs as the first releases need them: they read the first one.
func (s *state) signingFirst() []*ca.CA {
	others := slices.DeleteFunc(slices.Clone(s.CAs), func(c *ca.CA) bool { return c == s.Signing })
	return append([]*ca.CA{s.Signing}, others...)
}

// writeCopies writes the copies of the current state that differ. A process that lags writes them again once it has followed.
func (c *Certificate) writeCopies(ctx context.Context) error {
	s := c.current.Load()
	_, key := s.Signing.Encode()
	for name, want := range map[string][]byte{caName: certificates(s.signingFirst()), keyName: key} {
		if err := writeCopy(ctx, c.o.Storage, name, want); err != nil {
			err = fmt.Errorf("write %s: %w", name, err)
			c.copiesErr.Store(&err)
			return err
		}
	}
	c.copied.Store(s)
	c.copiesErr.Store(nil)
	return nil
}

func writeCopy(ctx context.Context, storage secret.Shared, name string, want []byte) error {
	for range maxConflicts {
		is, version, err := storage.Read(ctx, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			_, err = storage.Create(ctx, name, want)
		case err == nil && !bytes.Equal(is, want):
			_, err = storage.Update(ctx, name, want, version)
		}
		if !errors.Is(err, fs.ErrExist) && !errors.Is(err, secret.ErrConflict) {
			return err
		}
	}
	return secret.ErrConflict
}
