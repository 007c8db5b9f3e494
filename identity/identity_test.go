package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newMemory returns a storage that several Authorities can share.
func newMemory() secrettest.Records { return secrettest.Records{Memory: &secrettest.Memory{}} }

// clock is a clock that tests set.
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

// open opens a new Authority on the storage, like a starting control plane.
func open(t testing.TB, storage secrettest.Records, now func() time.Time) *Authority {
	t.Helper()
	return openWith(t, Options{Secrets: storage.Memory, Records: storage, Now: now})
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

// issue creates a key and a certificate for a proxy of workload "web".
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
