// Package secret says how the control plane keeps what no other program may read: the keys of CAs and of tokens.
package secret

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// ErrConflict says that a secret is no longer the version that the caller has read: another writer has changed it.
var ErrConflict = errors.New("it was changed meanwhile")

// Store keeps secrets, which several processes may share. Names are slash-separated paths. What Create has written is durable.
type Store interface {
	// Read returns a secret and its version, which is not empty. The error wraps fs.ErrNotExist if there is none.
	Read(ctx context.Context, name string) (data []byte, version string, err error)
	// Create writes a secret that does not exist, and returns its version. The error wraps fs.ErrExist if it does: of several
	// processes one succeeds.
	Create(ctx context.Context, name string, data []byte) (version string, err error)
}

// Shared is a Store whose secrets change, and which tells of it. store.Secrets and *secrets.Store implement it.
type Shared interface {
	Store
	// Update replaces a secret of which the caller has read this version, and returns the new one. The error wraps
	// ErrConflict if it has another one by now, and fs.ErrNotExist if there is none.
	Update(ctx context.Context, name string, data []byte, version string) (string, error)
	// Watch calls changed with the name of each secret that another process may have created, changed or removed, until ctx ends.
	// Then it returns nil.
	Watch(ctx context.Context, changed func(name string)) error
}

// ReadOrCreate returns a secret. If there is none it keeps what make returns, unless another process is faster: then it
// returns what that has kept.
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
		return nil, fmt.Errorf("keep a new one: %w", err)
	}
	return data, nil
}
