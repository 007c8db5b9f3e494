package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a storage that survives an Authority, and that several may share.
type memory struct {
	mu       sync.Mutex
	files    map[string][]byte
	versions int
	version  map[string]string
	watchers map[chan string]bool
	fail     error // of the next write
	reads    int
	slow     func(name string) // called before a write
}

func newMemory() *memory {
	return &memory{files: map[string][]byte{}, version: map[string]string{}, watchers: map[chan string]bool{}}
}

// secrets is a memory as Secrets.
type secrets struct{ *memory }

func (m secrets) Read(_ context.Context, name string) ([]byte, string, error) {
	data, err := m.memory.Read(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	return data, m.version[name], err
}

func (m secrets) Create(_ context.Context, name string, data []byte) (string, error) {
	m.wait(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[name]; ok {
		return "", fs.ErrExist
	}
	err := m.put(name, data)
	return m.version[name], err
}

func (m secrets) Update(_ context.Context, name string, data []byte, version string) (string, error) {
	m.wait(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.files[name]; !ok {
		return "", fs.ErrNotExist
	}
	if m.version[name] != version {
		return "", secret.ErrConflict
	}
	err := m.put(name, data)
	return m.version[name], err
}

func (m secrets) List(_ context.Context, dir string) ([]string, error) { return m.memory.List(dir) }

func (m secrets) Watch(ctx context.Context, changed func(string)) error {
	notices := make(chan string, 100)
	m.mu.Lock()
	m.watchers[notices] = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.watchers, notices)
		m.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case name := <-notices:
			changed(name)
		}
	}
}

func (m *memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	data, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return slices.Clone(data), nil
}

func (m *memory) Write(name string, data []byte) error {
	m.wait(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(name, data)
}

func (m *memory) wait(name string) {
	if m.slow != nil {
		m.slow(name)
	}
}

// put needs mu.
func (m *memory) put(name string, data []byte) error {
	if err := m.fail; err != nil {
		m.fail = nil
		return err
	}
	m.versions++
	m.files[name], m.version[name] = slices.Clone(data), strconv.Itoa(m.versions)
	for w := range m.watchers {
		w <- name
	}
	return nil
}

func (m *memory) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	return nil
}

func (m *memory) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for name := range m.files {
		if below, ok := strings.CutPrefix(name, dir+"/"); ok {
			first, _, _ := strings.Cut(below, "/")
			names[first] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// clock is moved by tests.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open opens the storage as a new Authority, as a starting control plane does.
func open(t testing.TB, storage *memory, now func() time.Time) *Authority {
	t.Helper()
	return openWith(t, Options{Secrets: secrets{storage}, Records: storage, Now: now})
}

func openWith(t testing.TB, o Options) *Authority {
	t.Helper()
	a, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newCSR(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	if template == nil {
		template = &x509.CertificateRequest{}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

var web = Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}

// issue makes a key and a certificate for a proxy of workload "web".
func issue(t testing.TB, a *Authority, meshName, dataplane string, validity time.Duration) (Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	if err := a.Ensure(t.Context(), meshName, 0); err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	c, err := a.Issue(t.Context(), Request{Subject: Subject{Mesh: meshName, Dataplane: dataplane, Path: "/workload/web"}, CSR: newCSR(t, key, nil), Validity: validity})
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

func parse(t testing.TB, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func contains(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want one that says %q", err, want)
	}
}
