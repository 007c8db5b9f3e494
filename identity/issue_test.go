package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

func TestIssuedCertificate(t *testing.T) {
	clock := newClock()
	a := open(t, newMemory(), clock.Now)
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	greedy := newCSR(t, key, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "admin"},
		DNSNames: []string{"other.default.proxy.sonde.internal"},
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "default.sonde.internal", Path: "/workload/other"}},
	})
	got, err := a.Issue(t.Context(), Request{Subject: web, CSR: greedy})
	if err != nil {
		t.Fatal(err)
	}
	leaf := parse(t, got.Chain[0])
	var uris []string
	for _, u := range leaf.URIs {
		uris = append(uris, u.String())
	}
	if diff := cmp.Diff([]string{"spiffe://default.sonde.internal/workload/web"}, uris); diff != "" {
		t.Error("URI SANs: " + diff)
	}
	if diff := cmp.Diff([]string{"web-1.default.proxy.sonde.internal"}, leaf.DNSNames); diff != "" {
		t.Error("DNS SANs: " + diff)
	}
	if leaf.Subject.CommonName != "" || leaf.IsCA || !leaf.BasicConstraintsValid || !key.PublicKey.Equal(leaf.PublicKey) {
		t.Errorf("leaf = subject %q, CA %t, constraints %t; or it has another key", leaf.Subject, leaf.IsCA, leaf.BasicConstraintsValid)
	}
	if want := clock.Now().Add(24 * time.Hour); !leaf.NotAfter.Equal(want) {
		t.Errorf("leaf ends %s, want %s", leaf.NotAfter, want)
	}
	if want := clock.Now().Add(-5 * time.Minute); !leaf.NotBefore.Equal(want) {
		t.Errorf("leaf begins %s, want %s", leaf.NotBefore, want)
	}
}

func TestPeer(t *testing.T) {
	a := open(t, newMemory(), nil)
	c, _ := issue(t, a, "default", "web-1", time.Hour)
	leaf := parse(t, c.Chain[0])
	if leaf.SerialNumber.BitLen() < 64 {
		t.Errorf("serial = %s, want 128 random bits", leaf.SerialNumber.Text(16))
	}
	peer, err := a.Verify([]*x509.Certificate{leaf})
	if err != nil {
		t.Fatal(err)
	}
	want := Peer{Subject: web, SPIFFEID: "spiffe://default.sonde.internal/workload/web", Serial: leaf.SerialNumber.Text(16), NotAfter: c.NotAfter, NotBefore: leaf.NotBefore, CA: a.signing(t).ID}
	if c.Serial != want.Serial {
		t.Errorf("Serial = %s, want %s", c.Serial, want.Serial)
	}
	if diff := cmp.Diff(want, peer); diff != "" {
		t.Error("Verify: " + diff)
	}
}

func TestLeafNeverOutlivesItsCA(t *testing.T) {
	clock := newClock()
	a := open(t, newMemory(), clock.Now)
	if err := a.Ensure(t.Context(), "default", 48*time.Hour); err != nil {
		t.Fatal(err)
	}
	end := clock.Now().Add(48 * time.Hour)
	clock.Add(40 * time.Hour)
	c, _ := issue(t, a, "default", "web-1", 24*time.Hour)
	if !c.NotAfter.Equal(end) {
		t.Errorf("leaf ends %s, want the end of its CA %s", c.NotAfter, end)
	}
	clock.Add(8 * time.Hour)
	_, err := a.Issue(t.Context(), Request{Subject: web, CSR: newCSR(t, ca.NewKey(), nil)})
	contains(t, err, "the CA expired at")
}

func TestRequestIsRefused(t *testing.T) {
	a := open(t, newMemory(), nil)
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tampered := newCSR(t, ca.NewKey(), nil)
	tampered[len(tampered)-1] ^= 1
	swapped, _ := x509.ParseCertificateRequest(newCSR(t, ca.NewKey(), nil))
	other, _ := x509.ParseCertificateRequest(newCSR(t, ca.NewKey(), nil))
	good := newCSR(t, ca.NewKey(), nil)
	tests := map[string]struct {
		csr       []byte
		dataplane string
		workload  string
		want      string
	}{
		"garbage":              {csr: []byte("garbage"), want: "not PKCS #10"},
		"nothing":              {want: "not PKCS #10"},
		"too large":            {csr: make([]byte, maxRequest+1), want: "at most"},
		"signature bent":       {csr: tampered, want: "signature"},
		"another key's":        {csr: splice(t, swapped, other), want: "signature"},
		"ECDSA on P-521":       {csr: newCSR(t, p521, nil), want: "must be on P-256 or P-384"},
		"Ed25519":              {csr: newCSR(t, ed, nil), want: "must be ECDSA"},
		"dataplane with slash": {csr: good, dataplane: "../web", want: "DNS subdomain"},
		"dataplane too long":   {csr: good, dataplane: string(make([]byte, 300)), want: "DNS subdomain"},
		"workload with space":  {csr: good, workload: "a/ b", want: "SPIFFE path"},
		"workload of dots":     {csr: good, workload: "..", want: "SPIFFE path"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := Request{Subject: web, CSR: tc.csr}
			if tc.dataplane != "" {
				r.Dataplane = tc.dataplane
			}
			if tc.workload != "" {
				r.Path = mesh.WorkloadPath(tc.workload)
			}
			_, err := a.Issue(t.Context(), r)
			contains(t, err, tc.want)
			if about := tc.dataplane == "" && tc.workload == ""; about != errors.Is(err, ErrInvalidRequest) {
				t.Errorf("errors.Is(%v, ErrInvalidRequest) = %t", err, !about)
			}
		})
	}
}

// splice replaces the key in a request by another request's, which makes the signature invalid.
func splice(t *testing.T, into, from *x509.CertificateRequest) []byte {
	t.Helper()
	a, b := into.RawSubjectPublicKeyInfo, from.RawSubjectPublicKeyInfo
	out := append([]byte(nil), into.Raw...)
	for i := 0; i+len(a) <= len(out); i++ {
		if string(out[i:i+len(a)]) == string(a) {
			copy(out[i:], b)
			return out
		}
	}
	t.Fatal("the key is not in the request")
	return nil
}

func TestKeysThatEnvoyTakes(t *testing.T) {
	a := open(t, newMemory(), nil)
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"P-256": ca.NewKey(), "P-384": p384, "RSA": rsaKey} {
		t.Run(name, func(t *testing.T) {
			if _, err := a.Issue(t.Context(), Request{Subject: web, CSR: newCSR(t, key, nil)}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAuthoritySurvivesRestart(t *testing.T) {
	storage := newMemory()
	a := open(t, storage, nil)
	c, _ := issue(t, a, "default", "web-1", 0)

	b := open(t, storage, nil)
	if _, err := b.Verify([]*x509.Certificate{parse(t, c.Chain[0])}); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(c.Bundle, bundle(t, b)); diff != "" {
		t.Error("bundle: " + diff)
	}
}

func TestVerifyRefuses(t *testing.T) {
	clock := newClock()
	a := open(t, newMemory(), clock.Now)
	mine, _ := issue(t, a, "default", "web-1", time.Hour)
	issue(t, a, "other", "web-1", time.Hour)
	stranger := open(t, newMemory(), clock.Now)
	theirs, _ := issue(t, stranger, "default", "web-1", time.Hour)
	unknown, _ := issue(t, stranger, "unknown", "web-1", time.Hour)

	// Certificates that a stolen CA of mesh "default" could sign.
	m, err := a.mesh("default")
	if err != nil {
		t.Fatal(err)
	}
	forge := func(uri, dns string, bend func(*x509.Certificate)) *x509.Certificate {
		u, err := url.Parse(uri)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			URIs: []*url.URL{u}, DNSNames: []string{dns}, KeyUsage: x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		if bend != nil {
			bend(template)
		}
		leaf, err := m.Current().Signing.Sign(template, ca.NewKey().Public(), clock.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return leaf
	}
	const id, dns = "spiffe://default.sonde.internal/workload/web", "web-1.default.proxy.sonde.internal"
	if _, err := a.Verify([]*x509.Certificate{forge(id, dns, nil)}); err != nil {
		t.Fatalf("a good one is refused: %v", err)
	}
	tests := map[string]struct {
		leaf  *x509.Certificate
		after time.Duration
		want  string
	}{
		"expired":                        {leaf: parse(t, mine.Chain[0]), after: time.Hour + time.Second, want: "expired"},
		"of another control plane":       {leaf: parse(t, theirs.Chain[0]), want: "verify"},
		"of a mesh that is not here":     {leaf: parse(t, unknown.Chain[0]), want: "CA not found"},
		"for another mesh's URI":         {leaf: forge("spiffe://other.sonde.internal/workload/web", "web-1.other.proxy.sonde.internal", nil), want: "verify"},
		"DNS name of another mesh":       {leaf: forge(id, "web-1.other.proxy.sonde.internal", nil), want: "verify"},
		"another trust domain":           {leaf: forge("spiffe://default.example.org/workload/web", dns, nil), want: "must be <mesh>."},
		"two DNS names":                  {leaf: forge(id, dns, func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "web-2.default.proxy.sonde.internal") }), want: "2 DNS names"},
		"no URI":                         {leaf: forge(id, dns, func(c *x509.Certificate) { c.URIs = nil }), want: "no URI SAN"},
		"two URIs":                       {leaf: forge(id, dns, func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), want: "more than one URI SAN"},
		"for servers alone":              {leaf: forge(id, dns, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), want: "not for clients"},
		"a CA":                           {leaf: forge(id, dns, func(c *x509.Certificate) { c.IsCA = true; c.KeyUsage |= x509.KeyUsageCertSign }), want: "CA flag"},
		"DNS name that is only the mesh": {leaf: forge(id, "default.proxy.sonde.internal", nil), want: "no proxy of mesh"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			clock.Add(tc.after)
			defer clock.Add(-tc.after)
			for _, chain := range [][]*x509.Certificate{{tc.leaf}, {tc.leaf, m.Current().Signing.Cert}} {
				_, err := a.Verify(chain)
				contains(t, err, tc.want)
			}
		})
	}
	if _, err := a.Rotation("unknown"); !errors.Is(err, ErrCANotFound) {
		t.Errorf("Rotation of a mesh that only a stranger's certificate names: %v, want ErrCANotFound", err)
	}
}

func TestMeshCA(t *testing.T) {
	clock := newClock()
	a := open(t, newMemory(), clock.Now)
	if err := a.Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	root := parse(t, bundle(t, a).Roots[0])
	if !root.IsCA || !root.MaxPathLenZero || root.URIs[0].String() != "spiffe://default.sonde.internal" {
		t.Errorf("root = CA %t, path length zero %t, %v", root.IsCA, root.MaxPathLenZero, root.URIs)
	}
	if want := clock.Now().Add(mesh.DefaultCAValidity); !root.NotAfter.Equal(want) {
		t.Errorf("CA ends %s, want %s", root.NotAfter, want)
	}
	if root.SerialNumber.Cmp(big.NewInt(1<<62)) < 0 {
		t.Errorf("serial %s is not random", root.SerialNumber)
	}
}

func TestAuthorityOfAnotherTrustDomainIsRefused(t *testing.T) {
	storage := newMemory()
	if err := open(t, storage, nil).Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	_, err := New(t.Context(), Options{Secrets: storage.Memory, Records: storage, TrustDomain: "example.org"})
	contains(t, err, "trust domain of the control plane")
}

func TestCorruptAuthorityLeaksNothing(t *testing.T) {
	storage := newMemory()
	if err := open(t, storage, nil).Ensure(t.Context(), "default", 0); err != nil {
		t.Fatal(err)
	}
	whole, err := storage.Read("meshes/default/ca.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := storage.Write("meshes/default/ca.json", whole[:len(whole)-3]); err != nil {
		t.Fatal(err)
	}
	_, err = New(t.Context(), Options{Secrets: storage.Memory, Records: storage})
	contains(t, err, "bytes are invalid: restore it from a backup")
}

func TestExpiryOfCAsIsMeasured(t *testing.T) {
	clock := newClock()
	registry := prometheus.NewRegistry()
	storage := newMemory()
	a := openWith(t, Options{Secrets: storage.Memory, Records: storage, Now: clock.Now, Registerer: registry})
	if err := a.Ensure(t.Context(), "default", 100*time.Hour); err != nil {
		t.Fatal(err)
	}
	clock.Add(time.Hour)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if name, ok := strings.CutPrefix(f.GetName(), "sonde_identity_ca_"); ok {
			for _, m := range f.GetMetric() {
				found[name+" of "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	// NotBefore is slightly earlier than the issue, for slow clocks.
	if expiry, validity := found["expiry_seconds of default"], found["validity_seconds of default"]; expiry != (99*time.Hour).Seconds() ||
		validity < (100*time.Hour).Seconds() || validity > (111*time.Hour).Seconds() || len(found) != 2 {
		t.Errorf("metrics of CAs = %v, want 99 hours of 100 for the mesh", found)
	}
}

// FuzzReadRequest checks that every request is accepted or rejected with a reason.
func FuzzReadRequest(f *testing.F) {
	f.Add(newCSR(f, ca.NewKey(), nil))
	f.Add([]byte{})
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		if public, _, err := readRequest(der); (public == nil) == (err == nil) {
			t.Errorf("readRequest() = %v, %v, want one of them", public, err)
		}
	})
}

// signing returns the CA that signs for mesh "default".
func (a *Authority) signing(t *testing.T) *ca.CA {
	t.Helper()
	m, err := a.mesh("default")
	if err != nil {
		t.Fatal(err)
	}
	return m.Current().Signing
}
