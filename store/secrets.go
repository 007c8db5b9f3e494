package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// Secrets are the files of a State as an identity.Secrets. A version is a hash of the content. No other process changes
// them, since the State is locked.
type Secrets struct{ state *State }

// Secrets returns the files as secrets.
func (s *State) Secrets() Secrets { return Secrets{s} }

// Read implements secret.Store.
func (s Secrets) Read(_ context.Context, name string) (data []byte, version string, err error) {
	data, err = s.state.Read(name)
	return data, versionOf(data), err
}

// Create implements secret.Store.
func (s Secrets) Create(_ context.Context, name string, data []byte) (string, error) {
	s.state.secrets.Lock()
	defer s.state.secrets.Unlock()
	_, err := s.state.Read(name)
	if err == nil {
		return "", fmt.Errorf("create %s: %w", name, fs.ErrExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return versionOf(data), s.state.Write(name, data)
}

// Update implements identity.Secrets.
func (s Secrets) Update(_ context.Context, name string, data []byte, version string) (string, error) {
	s.state.secrets.Lock()
	defer s.state.secrets.Unlock()
	now, err := s.state.Read(name)
	if err != nil {
		return "", err
	}
	if versionOf(now) != version {
		return "", fmt.Errorf("update %s: %w", name, secret.ErrConflict)
	}
	return versionOf(data), s.state.Write(name, data)
}

// List implements identity.Secrets.
func (s Secrets) List(_ context.Context, directory string) ([]string, error) {
	return s.state.List(directory)
}

// Watch implements identity.Secrets. Nothing else changes the files.
func (s Secrets) Watch(ctx context.Context, _ func(name string)) error {
	<-ctx.Done()
	return nil
}

func versionOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
