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
func (m *memory) List(folder string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.files {
		if rest, ok := strings.CutPrefix(name, folder+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// save writes the files below a folder, as in the state folder of a control plane.
func (m *memory) save(folder string) error {
	for name, data := range m.files {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func load(folder string) (*memory, error) {
	m := &memory{files: map[string][]byte{}}
	root := os.DirFS(folder)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		m.files[path], err = fs.ReadFile(root, path)
		return err
	})
	return m, err
}

// MakeState makes a state folder with the CAs of these meshes.
func MakeState(folder string, meshes ...string) error {
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
	return m.save(folder)
}

// Join writes into a state folder that these proxies have joined, with these workloads: else their endpoints are not ready.
func Join(folder string, workloads map[mesh.ID]string) error {
	m, err := load(folder)
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
	return m.save(folder)
}

// CopyState copies a state folder.
func CopyState(from, to string) error {
	m, err := load(from)
	if err != nil {
		return err
	}
	return m.save(to)
}

// OpenAuthority opens the CAs of a state folder. What they write stays in memory.
func OpenAuthority(folder string) (*identity.Authority, error) {
	m, err := load(folder)
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
