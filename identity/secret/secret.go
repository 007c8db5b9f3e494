// Package secret defines the storage of secrets of the control plane: the keys of CAs and of tokens.
package secret

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// ErrConflict means that a secret has changed since the caller read it.
var ErrConflict = errors.New("it was changed meanwhile")

// Store stores secrets, which several processes may share. Names are slash-separated paths. Create is durable.
type Store interface {
	// Read returns a secret and its version, which is not empty. The error wraps fs.ErrNotExist if it does not exist.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
	// Create writes a new secret, and returns its version. The error wraps fs.ErrExist if it exists, so that only one of
	// several processes succeeds.
	Create(ctx context.Context, name string, data []byte) (version string, err error)
}

// Shared is a Store that reports changes of its secrets. store.Secrets and *secrets.Store implement it.
type Shared interface {
	Store
	// Update replaces a secret if it is at the given version, and returns the new version. Otherwise the error wraps
	// ErrConflict, or fs.ErrNotExist if it does not exist.
	Update(ctx context.Context, name string, data []byte, version string) (string, error)
	// Watch calls changed with the name of each secret that another process may have created, changed or removed, until
	// ctx ends. Then it returns nil.
	Watch(ctx context.Context, changed func(name string)) error
}

// ReadOrCreate returns a secret. If the secret does not exist, it stores the result of make, or returns the secret of
// another process that was faster.
func ReadOrCreate(ctx context.Context, s Store, name string, make func() ([]byte, error)) ([]byte, error) {
	data, _, err := s.Read(ctx, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	if data, err = make(); err != nil {
		return nil, err
	}
	_, err = s.Create(ctx, name, data)
	if errors.Is(err, fs.ErrExist) {
		data, _, err = s.Read(ctx, name)
	}
	if err != nil {
		return nil, fmt.Errorf("store new secret: %w", err)
	}
	return data, nil
}
