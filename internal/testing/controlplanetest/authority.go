// Package controlplanetest is a scripted control plane for tests of agents, with real TLS and real signatures.
package controlplanetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// Authority signs certificates with its own key.
type Authority struct {
	// Key signs certificates.
	Key *ecdsa.PrivateKey
	// Cert is the authority's own certificate.
	Cert *x509.Certificate
}

// NewKey returns a new private key.
func NewKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// NewAuthority returns a CA that is valid for a day.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	key := NewKey(t)
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{key, cert}
}

// Sign returns a leaf certificate with all usages of a proxy and a server. It became valid a second ago, and life is
// its whole validity.
func (a *Authority) Sign(t testing.TB, public any, life time.Duration, dnsName, spiffeID string) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(t), DNSNames: []string{dnsName},
		NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(life - time.Second),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if spiffeID != "" {
		id, err := url.Parse(spiffeID)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{id}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, public, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// BundleOf returns the CAs in the form that the control plane sends.
func BundleOf(cas ...*Authority) *agentv1.Bundle {
	b := &agentv1.Bundle{}
	hash := sha256.New()
	for _, ca := range cas {
		b.Roots = append(b.Roots, ca.Cert.Raw)
		hash.Write(ca.Cert.Raw)
	}
	b.Id = hex.EncodeToString(hash.Sum(nil)[:8])
	return b
}

// Give writes the file that configures agents with the control plane's CAs.
func (cp *ControlPlane) Give(cas ...*Authority) {
	cp.t.Helper()
	var file []byte
	for _, ca := range cas {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Cert.Raw})...)
	}
	if err := os.WriteFile(cp.CAFile, file, 0o600); err != nil {
		cp.t.Fatal(err)
	}
}
