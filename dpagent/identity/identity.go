// Package identity keeps the proxy's key, certificate and bundle: in memory for the agent's own connections, and on
// disk as the secrets that Envoy reads. It also keeps the CAs that verify the control plane for the agent and Envoy.
package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits on messages of the control plane: number of certificates, and bytes per certificate.
const (
	maxChain = 8
	maxRoots = 64
	maxDER   = 64 << 10
)

// Files reads files, and replaces them atomically. *workdir.Dir implements it.
type Files interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
}

// Identity holds the proxy's identity. It is safe for concurrent use.
type Identity struct {
	files   Files
	dnsName string

	// writing is held while files and memory are replaced, and mu only while memory is accessed, so that readers do not
	// wait for a disk.
	writing sync.Mutex
	mu      sync.RWMutex
	leaf    *tls.Certificate // nil before the first Accept
	bundle  bundle
	// epoch is the highest epoch of a bundle that this agent, or an earlier agent in its work directory, has used.
	epoch int64
	older atomic.Uint64 // number of older bundles received
	// refused is the last certificate rejected as not yet valid; nil after an accepted certificate.
	refused atomic.Pointer[x509.Certificate]
}

type bundle struct {
	id    string
	epoch int64 // 0 from a control plane without epochs
	roots []*x509.Certificate
}

// ErrOlderBundle means that a bundle is older than the one in use: a replica of the control plane that has missed the
// last change sent it.
var ErrOlderBundle = errors.New("older than the one in use")

// inOrder returns an error if a bundle is older than the one in use. The caller holds mu or writing.
func (i *Identity) inOrder(next bundle) error {
	if next.epoch != 0 && next.epoch < i.epoch {
		i.older.Add(1)
		return fmt.Errorf("trust bundle %q of epoch %d, after epoch %d: %w (if this proxy has moved to another control plane, remove %s from the work directory)",
			next.id, next.epoch, i.epoch, ErrOlderBundle, mesh.FileCA)
	}
	return nil
}

// New returns the identity of the proxy, without a certificate yet.
func New(files Files, meshName, name string) *Identity {
	return &Identity{files: files, dnsName: mesh.ProxyDNSName(meshName, name)}
}

// Request is a new key with a certificate request for it. The key is only in memory before Accept.
type Request struct {
	// CSR to send: PKCS #10, DER.
	CSR []byte

	key *ecdsa.PrivateKey
}

// NewRequest generates a key and a certificate request for it.
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

// Accept checks the control plane's response to r, and installs it. On an error the old identity stays in use.
func (i *Identity) Accept(r *Request, answer *agentv1.Identity) error {
	next, err := parseBundle(answer.GetBundle())
	if err != nil {
		return err
	}
	leaf, err := parseLeaf(answer.GetCertificateChain(), r.key)
	if err != nil {
		return err
	}
	if err := notYetValid(leaf.Leaf, time.Now()); err != nil {
		i.refused.Store(leaf.Leaf)
		return fmt.Errorf("check certificate: %w", err)
	}
	if err := i.check(leaf, next); err != nil {
		return err
	}
	secret, err := identitySecret(leaf)
	if err != nil {
		return err
	}
	i.writing.Lock()
	defer i.writing.Unlock()
	if err := i.inOrder(next); err != nil {
		return err
	}
	// Install the bundle first, so that no peer is rejected in between.
	if err := i.putBundle(next); err != nil {
		return err
	}
	if err := i.files.Write(mesh.FileIdentity, secret); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leaf = leaf
	i.refused.Store(nil)
	return nil
}

// Restore rewrites both files for a starting Envoy: they may have been removed or damaged.
func (i *Identity) Restore() error {
	i.writing.Lock()
	defer i.writing.Unlock()
	if i.leaf == nil {
		return errors.New("restore identity: no certificate yet")
	}
	trusted, err := bundleSecret(mesh.SecretCA, i.bundle)
	if err != nil {
		return err
	}
	own, err := identitySecret(i.leaf)
	if err != nil {
		return err
	}
	return errors.Join(i.files.Write(mesh.FileCA, trusted), i.files.Write(mesh.FileIdentity, own))
}

// Trust installs a new bundle. On an error the old bundle stays in use. It returns an error if the proxy's own
// certificate does not verify against the new bundle, since the proxy then needs another certificate first.
func (i *Identity) Trust(b *agentv1.Bundle) error {
	next, err := parseBundle(b)
	if err != nil {
		return err
	}
	i.writing.Lock()
	defer i.writing.Unlock()
	if err := i.inOrder(next); err != nil {
		return err
	}
	if i.leaf != nil {
		if err := verify(i.leaf, next, timeOf(i.leaf)); err != nil {
			return fmt.Errorf("trust bundle %q: %w", next.id, err)
		}
	}
	return i.putBundle(next)
}

// putBundle writes the bundle if it differs from the one in use. The caller holds writing.
func (i *Identity) putBundle(next bundle) error {
	if next.epoch != i.bundle.epoch || !slices.EqualFunc(next.roots, i.bundle.roots, (*x509.Certificate).Equal) {
		secret, err := bundleSecret(mesh.SecretCA, next)
		if err != nil {
			return err
		}
		if err := i.files.Write(mesh.FileCA, secret); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bundle = next
	i.epoch = max(i.epoch, next.epoch)
	return nil
}

// isOwn reports whether a certificate names this proxy, and its mesh.
func (i *Identity) isOwn(leaf *tls.Certificate) bool {
	return slices.Equal(leaf.Leaf.DNSNames, []string{i.dnsName})
}

func (i *Identity) check(leaf *tls.Certificate, b bundle) error {
	if !i.isOwn(leaf) {
		return fmt.Errorf("check certificate: its DNS names are %q, not %q", leaf.Leaf.DNSNames, i.dnsName)
	}
	if len(leaf.Leaf.URIs) != 1 || leaf.Leaf.URIs[0].Scheme != "spiffe" {
		return fmt.Errorf("check certificate: its URI names are %q, not one SPIFFE ID", leaf.Leaf.URIs)
	}
	return verify(leaf, b, timeOf(leaf))
}

// timeOf returns the time at which to verify a certificate: now, or its NotBefore if this host's clock was set back
// after the certificate was installed, since other proxies may have the right time.
func timeOf(leaf *tls.Certificate) time.Time {
	if now := time.Now(); now.After(leaf.Leaf.NotBefore) {
		return now
	}
	return leaf.Leaf.NotBefore
}

func notYetValid(leaf *x509.Certificate, now time.Time) error {
	if !now.Before(leaf.NotBefore) {
		return nil
	}
	return fmt.Errorf("the certificate %w before %s, in %s: the clock of this host is behind, or the control plane's clock was ahead",
		errNotYetValid, leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotBefore.Sub(now).Round(time.Second))
}

var errNotYetValid = errors.New("is not valid")

// CheckClock returns an error if the identity in use is not yet valid by this clock, or if the last new certificate was
// rejected as not yet valid.
func (i *Identity) CheckClock(now time.Time) error {
	if leaf := i.Leaf(); leaf != nil {
		if err := notYetValid(leaf, now); err != nil {
			return err
		}
	}
	if refused := i.refused.Load(); refused != nil {
		if err := notYetValid(refused, now); err != nil {
			return fmt.Errorf("a new certificate is rejected: %w", err)
		}
	}
	return nil
}

// Valid returns why the identity is unusable now, or nil.
func (i *Identity) Valid(now time.Time) error {
	leaf := i.Leaf()
	switch {
	case leaf == nil:
		return errors.New("no certificate yet")
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// Leaf returns the current certificate, or nil before the first one. It must not be modified.
func (i *Identity) Leaf() *x509.Certificate {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.leaf == nil {
		return nil
	}
	return i.leaf.Leaf
}

// Certificate returns the client certificate for calls of the control plane; it is empty before the first one.
func (i *Identity) Certificate() *tls.Certificate {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if i.leaf == nil {
		return &tls.Certificate{}
	}
	return i.leaf
}

// InUse returns the agent's report to the control plane.
func (i *Identity) InUse() *agentv1.InUse {
	i.mu.RLock()
	defer i.mu.RUnlock()
	use := &agentv1.InUse{BundleId: i.bundle.id, BundleEpoch: i.bundle.epoch}
	if i.leaf != nil {
		leaf := i.leaf.Leaf
		use.LeafSerial, use.LeafNotAfter = leaf.SerialNumber.Text(16), timestamppb.New(leaf.NotAfter)
		use.LeafCa = i.bundle.issuerOf(leaf)
	}
	return use
}

// issuerOf returns the ID of the CA that signed a verified certificate (see agentv1.InUse), or "" if the bundle no
// longer has this CA.
func (b bundle) issuerOf(leaf *x509.Certificate) string {
	for _, root := range b.roots {
		if bytes.Equal(root.RawSubject, leaf.RawIssuer) {
			sum := sha256.Sum256(root.Raw)
			return hex.EncodeToString(sum[:16])
		}
	}
	return ""
}

func parseBundle(b *agentv1.Bundle) (bundle, error) {
	roots, err := parseCertificates(b.GetRoots(), maxRoots)
	if err != nil {
		return bundle{}, fmt.Errorf("read bundle %q: %w", b.GetId(), err)
	}
	for _, root := range roots {
		if !root.IsCA {
			return bundle{}, fmt.Errorf("read bundle %q: certificate %s is not a CA's", b.GetId(), root.SerialNumber.Text(16))
		}
	}
	return bundle{id: b.GetId(), epoch: b.GetEpoch(), roots: roots}, nil
}

func parseLeaf(chain [][]byte, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	parsed, err := parseCertificates(chain, maxChain)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	if !key.PublicKey.Equal(parsed[0].PublicKey) {
		return nil, errors.New("read certificate: wrong key")
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: parsed[0]}, nil
}

func parseCertificates(ders [][]byte, limit int) ([]*x509.Certificate, error) {
	if len(ders) == 0 || len(ders) > limit {
		return nil, fmt.Errorf("%d certificates, not 1 to %d", len(ders), limit)
	}
	parsed := make([]*x509.Certificate, len(ders))
	for n, der := range ders {
		if len(der) > maxDER {
			return nil, fmt.Errorf("certificate %d has %d bytes, more than %d", n, len(der), maxDER)
		}
		var err error
		// A parsed certificate keeps the bytes that it was parsed from, so a copy lets the rest of the message be freed.
		if parsed[n], err = x509.ParseCertificate(bytes.Clone(der)); err != nil {
			return nil, fmt.Errorf("certificate %d: %w", n, err)
		}
	}
	return parsed, nil
}

// verify checks that the leaf is valid as a client and as a server certificate in the mesh.
func verify(leaf *tls.Certificate, b bundle, now time.Time) error {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, root := range b.roots {
		roots.AddCert(root)
	}
	for _, der := range leaf.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("check certificate: %w", err)
		}
		intermediates.AddCert(cert)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		_, err := leaf.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err != nil {
			return fmt.Errorf("check certificate: %w", err)
		}
	}
	return nil
}
