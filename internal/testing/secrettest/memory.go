// Package secrettest provides secrets and records in memory for tests. Several simulated processes may share them.
package secrettest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sonde-mesh/sonde/identity/secret"
)

var _ secret.Shared = (*Memory)(nil)

// Memory is a secret.Shared in memory. Its zero value is empty. Set its functions before several goroutines use it.
type Memory struct {
	// Before is called before each write.
	Before func(name string)
	// Fail returns the error of a write, nil if it succeeds.
	Fail func(name string) error
	// Wrote is called with everything written, in order.
	Wrote func(name string, data []byte)

	mu       sync.Mutex
	files    map[string]file
	written  int
	reads    int
	watchers map[*watcher]bool
}

type file struct {
	data    []byte
	version int
}

// Read implements secret.Store.
func (m *Memory) Read(_ context.Context, name string) ([]byte, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	f, ok := m.files[name]
	if !ok {
		return nil, "", fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return slices.Clone(f.data), strconv.Itoa(f.version), nil
}

// Create implements secret.Store.
func (m *Memory) Create(_ context.Context, name string, data []byte) (string, error) {
	return m.write(name, data, func(_ file, there bool) error {
		if there {
			return fmt.Errorf("create %s: %w", name, fs.ErrExist)
		}
		return nil
	})
}

// Update implements secret.Shared.
func (m *Memory) Update(_ context.Context, name string, data []byte, version string) (string, error) {
	return m.write(name, data, func(f file, there bool) error {
		switch {
		case !there:
			return fmt.Errorf("update %s: %w", name, fs.ErrNotExist)
		case strconv.Itoa(f.version) != version:
			return fmt.Errorf("update %s: %w", name, secret.ErrConflict)
		}
		return nil
	})
}

// write writes unless check returns an error, and notifies the watchers.
func (m *Memory) write(name string, data []byte, check func(f file, there bool) error) (string, error) {
	if m.Before != nil {
		m.Before(name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.files[name]
	err := check(f, ok)
	if err == nil && m.Fail != nil {
		err = m.Fail(name)
	}
	if err != nil {
		return "", err
	}
	m.put(name, data)
	for w := range m.watchers {
		w.tell(name)
	}
	return strconv.Itoa(m.written), nil
}

// put stores a value. The caller holds mu.
func (m *Memory) put(name string, data []byte) {
	if m.files == nil {
		m.files = map[string]file{}
	}
	m.written++
	m.files[name] = file{slices.Clone(data), m.written}
	if m.Wrote != nil {
		m.Wrote(name, data)
	}
}

// List implements identity.Secrets.
func (m *Memory) List(_ context.Context, directory string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for name := range m.files {
		if below, in := strings.CutPrefix(name, directory+"/"); in {
			first, _, _ := strings.Cut(below, "/")
			names[first] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// Put sets a secret, or removes it if data is nil, without notifying watchers.
func (m *Memory) Put(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if data == nil {
		delete(m.files, name)
		return
	}
	m.put(name, data)
}

// Get returns a secret, or nil.
func (m *Memory) Get(name string) []byte { return m.All()[name] }

// All returns all secrets.
func (m *Memory) All() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string][]byte{}
	for name, f := range m.files {
		all[name] = f.data
	}
	return all
}

// Reads returns the number of reads.
func (m *Memory) Reads() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}
