// Package identity keeps the proxy's key, certificate and bundle: in memory for the agent's own connections, and on disk
// as the two secrets that Envoy reads.
package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

// Limits of what the control plane may hand over: Envoy would read all of it.
const (
	maxChain = 8
	maxRoots = 64
	maxDER   = 64 << 10
)

// Writer puts a file in place by rename. *workdir.Dir is one.
type Writer interface {
	Write(name string, data []byte) error
}

// Identity is safe for use by several goroutines.
type Identity struct {
	files   Writer
	dnsName string

	mu     sync.RWMutex
	leaf   *tls.Certificate // nil before the first Accept
	bundle bundle
}

type bundle struct {
	id    string
	roots []*x509.Certificate
}

// New is an identity for the proxy, without a certificate yet.
func New(files Writer, meshName, name string) *Identity {
	return &Identity{files: files, dnsName: mesh.ProxyDNSName(meshName, name)}
}

// Request is a new key with the certificate request for it. The key is in memory alone until Accept.
type Request struct {
	// CSR to send: PKCS #10, DER.
	CSR []byte

	key *ecdsa.PrivateKey
}

// NewRequest makes a key.
func NewRequest() (*Request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{}}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return &Request{CSR: csr, key: key}, nil
}

// Accept checks what the control plane answered to r, and puts it in place. On an error the old identity goes on.
func (i *Identity) Accept(r *Request, answer *agentv1.Identity) error {
	next, err := parseBundle(answer.GetBundle())
	if err != nil {
		return err
	}
	leaf, err := parseLeaf(answer.GetCertificateChain(), r.key)
	if err != nil {
		return err
	}
	if err := i.check(leaf, next); err != nil {
		return err
	}
	secret, err := identitySecret(leaf)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	// The bundle first: who trusts more refuses nobody.
	if err := i.put(next); err != nil {
		return err
	}
	if err := i.files.Write(workdir.Identity, secret); err != nil {
		return err
	}
	i.leaf = leaf
	return nil
}

// Restore puts both files in place again: somebody else may have removed or spoilt them, and an Envoy that starts has
// nothing else.
func (i *Identity) Restore() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.leaf == nil {
		return errors.New("restore identity: there is no certificate yet")
	}
	trusted, err := bundleSecret(i.bundle)
	if err != nil {
		return err
	}
	own, err := identitySecret(i.leaf)
	if err != nil {
		return err
	}
	return errors.Join(i.files.Write(workdir.CA, trusted), i.files.Write(workdir.Identity, own))
}

// Trust puts a new bundle in place. On an error the old one goes on. A bundle against which the proxy's own certificate
// does not verify is an error: where nobody accepts what this proxy shows, it needs another certificate first.
func (i *Identity) Trust(b *agentv1.Bundle) error {
	next, err := parseBundle(b)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.leaf != nil {
		if err := verify(i.leaf, next, time.Now()); err != nil {
			return fmt.Errorf("trust bundle %q: %w", next.id, err)
		}
	}
	return i.put(next)
}

// put writes the bundle unless it is the one in place. The lock is held.
func (i *Identity) put(next bundle) error {
	if !slices.EqualFunc(next.roots, i.bundle.roots, (*x509.Certificate).Equal) {
		secret, err := bundleSecret(next)
		if err != nil {
			return err
		}
		if err := i.files.Write(workdir.CA, secret); err != nil {
			return err
		}
	}
	i.bundle = next
	return nil
}

func (i *Identity) check(leaf *tls.Certificate, b bundle) error {
	if !slices.Equal(leaf.Leaf.DNSNames, []string{i.dnsName}) {
		return fmt.Errorf("check certificate: its DNS names are %q, not %q", leaf.Leaf.DNSNames, i.dnsName)
	}
	if len(leaf.Leaf.URIs) != 1 || leaf.Leaf.URIs[0].Scheme != "spiffe" {
		return fmt.Errorf("check certificate: its URI names are %q, not one SPIFFE ID", leaf.Leaf.URIs)
	}
	return verify(leaf, b, time.Now())
}

// Valid returns why the identity is of no use now, nil if it is.
func (i *Identity) Valid(now time.Time) error {
	leaf := i.Leaf()
	switch {
	case leaf == nil:
		return errors.New("there is no certificate yet")
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// Leaf is the certificate in place, nil before the first. It must not be changed.
func (i *Identity) Leaf() *x509.Certificate {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.leaf == nil {
		return nil
	}
	return i.leaf.Leaf
}

// Certificate is what the agent shows to the control plane, an empty one before the first.
func (i *Identity) Certificate() *tls.Certificate {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.leaf == nil {
		return &tls.Certificate{}
	}
	return i.leaf
}

// InUse is what the agent reports.
func (i *Identity) InUse() *agentv1.InUse {
	i.mu.RLock()
	defer i.mu.RUnlock()
	use := &agentv1.InUse{BundleId: i.bundle.id}
	if i.leaf != nil {
		use.LeafSerial = i.leaf.Leaf.SerialNumber.Text(16)
	}
	return use
}

func parseBundle(b *agentv1.Bundle) (bundle, error) {
	roots, err := parseAll(b.GetRoots(), maxRoots)
	if err != nil {
		return bundle{}, fmt.Errorf("read bundle %q: %w", b.GetId(), err)
	}
	for _, root := range roots {
		if !root.IsCA {
			return bundle{}, fmt.Errorf("read bundle %q: certificate %s is not of a CA", b.GetId(), root.SerialNumber.Text(16))
		}
	}
	return bundle{id: b.GetId(), roots: roots}, nil
}

func parseLeaf(chain [][]byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	parsed, err := parseAll(chain, maxChain)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	if !key.PublicKey.Equal(parsed[0].PublicKey) {
		return nil, errors.New("read certificate: it is for another key")
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: parsed[0]}, nil
}

func parseAll(ders [][]byte, limit int) ([]*x509.Certificate, error) {
	if len(ders) == 0 || len(ders) > limit {
		return nil, fmt.Errorf("%d certificates, not 1 to %d", len(ders), limit)
	}
	parsed := make([]*x509.Certificate, len(ders))
	for n, der := range ders {
		if len(der) > maxDER {
			return nil, fmt.Errorf("certificate %d has %d bytes, more than %d", n, len(der), maxDER)
		}
		var err error
		// Parsed certificates point into what they were parsed from: a copy lets the message go.
		if parsed[n], err = x509.ParseCertificate(bytes.Clone(der)); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n, err)
		}
	}
	return parsed, nil
}

// verify checks that the leaf is good for both sides of a connection in the mesh.
func verify(leaf *tls.Certificate, b bundle, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range b.roots {
		roots.AddCert(root)
	}
	for _, der := range leaf.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("check certificate: %w", err)
		}
		between.AddCert(cert)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return fmt.Errorf("check certificate: %w", err)
		}
	}
	return nil
}
