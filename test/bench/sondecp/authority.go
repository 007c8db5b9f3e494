// Package sondecp has what the benchmarks share: it builds sonde-cp, waits for it, and makes identities of proxies
// without asking it.
package sondecp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

// memory is an identity.Storage in memory. Writing the certificates of thousands of proxies to disk, each synced, would take
// most of the benchmark's time.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
}

var _ identity.Storage = (*memory)(nil)

// Read implements identity.Storage.
func (m *memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return data, nil
}

// Write implements identity.Storage.
func (m *memory) Write(name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = slices.Clone(data)
	return nil
}

// Remove implements identity.Storage.
func (m *memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

// List implements identity.Storage.
func (m *memory) List(directory string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.files {
		if rest, ok := strings.CutPrefix(name, directory+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// save writes the files below a directory, as in the state directory of a control plane.
func (m *memory) save(directory string) error {
	for name, data := range m.files {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func load(directory string) (*memory, error) {
	m := &memory{files: map[string][]byte{}}
	root := os.DirFS(directory)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		m.files[path], err = fs.ReadFile(root, path)
		return err
	})
	return m, err
}

// MakeState makes a state directory with the CAs of these meshes.
func MakeState(directory string, meshes ...string) error {
	m := &memory{files: map[string][]byte{}}
	a, err := identity.New(identity.Options{Storage: m})
	if err != nil {
		return err
	}
	for _, name := range meshes {
		if err := a.Ensure(name, 0); err != nil {
			return err
		}
	}
	return m.save(directory)
}

// Join writes into a state directory that these proxies have joined, with these workloads: else their endpoints are not ready.
func Join(directory string, workloads map[mesh.ID]string) error {
	m, err := load(directory)
	if err != nil {
		return err
	}
	a, err := identity.New(identity.Options{Storage: m})
	if err != nil {
		return err
	}
	for proxy, workload := range workloads {
		meshName, dataplane := mesh.SplitID(proxy)
		if _, err := Issue(a, meshName, dataplane, workload); err != nil {
			return err
		}
	}
	return m.save(directory)
}

// CopyState copies a state directory.
func CopyState(from, to string) error {
	m, err := load(from)
	if err != nil {
		return err
	}
	return m.save(to)
}

// OpenAuthority opens the CAs of a state directory. What they write stays in memory.
func OpenAuthority(directory string) (*identity.Authority, error) {
	m, err := load(directory)
	if err != nil {
		return nil, err
	}
	return identity.New(identity.Options{Storage: m})
}

// Issue makes a proxy's identity, as the control plane does when its agent joins.
func Issue(a *identity.Authority, meshName, dataplane, workload string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	issued, err := a.Issue(identity.Request{Mesh: meshName, Dataplane: dataplane, Workload: workload, CSR: csr, Life: 24 * time.Hour})
	return tls.Certificate{Certificate: issued.Chain, PrivateKey: key}, err
}
