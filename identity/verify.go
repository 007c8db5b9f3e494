package identity

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// Peer is an authenticated proxy.
type Peer struct {
	Subject
	SPIFFEID string
	// Serial number of its certificate in hexadecimal, as in agentv1.InUse.
	Serial   string
	NotAfter time.Time
	// NotBefore is the certificate's, zero if unknown.
	NotBefore time.Time
	// CA is the ID of its issuer.
	CA string
}

// maxChain limits the certificates from a client. Sonde's own chains have one.
const maxChain = 4

// Verify checks the certificate chain of a client, whose key the handshake has verified. It uses the roots of the mesh
// that the trust domain names, so that a certificate is never valid in another mesh.
func (a *Authority) Verify(chain []*x509.Certificate) (Peer, error) {
	if len(chain) == 0 {
		return Peer{}, errors.New("verify client certificate: none was sent")
	}
	if len(chain) > maxChain {
		return Peer{}, fmt.Errorf("verify client certificate: chain of %d: must have at most %d", len(chain), maxChain)
	}
	if _, _, err := x509svid.Verify(chain, trustSource{a}, x509svid.WithTime(a.timeFor(chain))); err != nil {
		return Peer{}, fmt.Errorf("verify client certificate: %w", err)
	}
	return a.peerOf(chain[0])
}

// timeFor returns the time at which to verify a chain, see ca.TimeFor.
func (a *Authority) timeFor(chain []*x509.Certificate) time.Time {
	now := ca.TimeFor(a.o.Now(), chain...)
	id, err := x509svid.IDFromCert(chain[0])
	if err != nil {
		return now
	}
	roots, err := trustSource{a}.GetX509BundleForTrustDomain(id.TrustDomain())
	if err != nil {
		return now
	}
	for _, root := range roots.X509Authorities() {
		if bytes.Equal(root.RawSubject, chain[len(chain)-1].RawIssuer) {
			now = ca.TimeFor(now, root)
		}
	}
	return now
}

// peerOf returns the subject of a verified certificate.
func (a *Authority) peerOf(leaf *x509.Certificate) (Peer, error) {
	id, err := x509svid.IDFromCert(leaf)
	if err != nil {
		return Peer{}, fmt.Errorf("verify client certificate: %w", err)
	}
	if !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		return Peer{}, errors.New("verify client certificate: it is not for clients")
	}
	meshName, err := a.meshOf(id.TrustDomain())
	if err != nil {
		return Peer{}, fmt.Errorf("verify client certificate: %w", err)
	}
	if len(leaf.DNSNames) != 1 {
		return Peer{}, fmt.Errorf("verify client certificate: %d DNS names, must be one", len(leaf.DNSNames))
	}
	dataplane, ok := strings.CutSuffix(leaf.DNSNames[0], "."+meshName+"."+mesh.ProxyDomain)
	if !ok || checkNames(meshName, dataplane) != nil {
		return Peer{}, fmt.Errorf("verify client certificate: DNS name %q is no proxy of mesh %q",
			shorten(leaf.DNSNames[0]), meshName)
	}
	m, err := a.mesh(meshName)
	if err != nil {
		return Peer{}, fmt.Errorf("verify client certificate: %w", err)
	}
	return Peer{
		Subject:  Subject{Mesh: meshName, Dataplane: dataplane, Path: id.Path(), Instance: leaf.Subject.SerialNumber},
		SPIFFEID: id.String(),
		Serial:   leaf.SerialNumber.Text(16),
		NotAfter: leaf.NotAfter, NotBefore: leaf.NotBefore,
		CA: m.Current().issuerOf(leaf),
	}, nil
}

// issuerOf returns the ID of the CA that signed a verified certificate, "" if it is no longer trusted.
func (s *state) issuerOf(leaf *x509.Certificate) string {
	for _, c := range s.CAs {
		if bytes.Equal(c.Cert.RawSubject, leaf.RawIssuer) {
			return c.ID
		}
	}
	return ""
}

// meshOf is the reverse of mesh.TrustDomain.
func (a *Authority) meshOf(td spiffeid.TrustDomain) (string, error) {
	name, ok := strings.CutSuffix(td.Name(), "."+a.o.TrustDomain)
	if !ok || !label.MatchString(name) {
		return "", fmt.Errorf("trust domain %q: must be <mesh>.%s", shorten(td.Name()), a.o.TrustDomain)
	}
	return name, nil
}

// trustSource provides the roots of each mesh to go-spiffe.
type trustSource struct{ *Authority }

var _ x509bundle.Source = trustSource{}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (s trustSource) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	name, err := s.meshOf(td)
	if err != nil {
		return nil, err
	}
	m, err := s.mesh(name)
	if err != nil {
		return nil, err
	}
	return m.Current().x509, nil
}
