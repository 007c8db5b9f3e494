package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/identity/ca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a storage that survives an Authority.
type memory struct {
	mu    sync.Mutex
	files map[string][]byte
	fail  error // of the next Write
}

func newMemory() *memory { return &memory{files: map[string][]byte{}} }

func (m *memory) Read(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.files[name]
	if !ok {
		return nil, fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return slices.Clone(data), nil
}

func (m *memory) Write(name string, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fail; err != nil {
		m.fail = nil
		return err
	}
	m.files[name] = slices.Clone(data)
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
func open(t testing.TB, storage Records, now func() time.Time) *Authority {
	t.Helper()
	a, err := New(Options{Secrets: storage, Records: storage, Now: now})
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

var web = Subject{Mesh: "default", Dataplane: "web-1", Workload: "web"}

// issue makes a key and a certificate for a proxy of workload "web".
func issue(t testing.TB, a *Authority, meshName, dataplane string, validity time.Duration) (Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	if err := a.Ensure(meshName, 0); err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	c, err := a.Issue(Request{Subject: Subject{Mesh: meshName, Dataplane: dataplane, Workload: "web"}, CSR: newCSR(t, key, nil), Validity: validity})
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
