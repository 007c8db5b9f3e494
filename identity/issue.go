package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// ErrInvalidRequest means that a certificate request is invalid; do not retry it.
var ErrInvalidRequest = errors.New("invalid certificate request")

// Limits of a certificate request.
const (
	maxRequest = 16 << 10
	minRSABits = 2048
	maxRSABits = 4096
)

// Request describes the certificate of a proxy. The caller must have authorised the proxy.
type Request struct {
	Subject
	// CSR is PKCS #10, DER. Only its public key and its signature are used.
	CSR []byte
	// Validity of the certificate, which never outlives its CA. Default mesh.DefaultCertValidity.
	Validity time.Duration
}

// Certificate is an issued certificate.
type Certificate struct {
	// Chain is DER, the leaf first.
	Chain [][]byte
	// Serial number in hexadecimal, as in agentv1.InUse.
	Serial   string
	NotAfter time.Time
	// Bundle that the mesh trusts now.
	Bundle Bundle
}

// Issue signs the certificate of a proxy and records it. The error is ErrInvalidRequest for an invalid CSR.
func (a *Authority) Issue(ctx context.Context, r Request) (Certificate, error) {
	if err := r.Validate(); err != nil {
		return Certificate{}, err
	}
	public, usage, err := readRequest(r.CSR)
	if err != nil {
		return Certificate{}, fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	}
	if r.Validity <= 0 {
		r.Validity = mesh.DefaultCertValidity
	}
	m, err := a.mesh(r.Mesh)
	if err != nil {
		return Certificate{}, err
	}
	if err := a.allowValidity(ctx, m, r.Validity); err != nil {
		return Certificate{}, err
	}
	id, err := spiffeid.FromPath(m.Current().td, r.Path)
	if err != nil {
		return Certificate{}, fmt.Errorf("create SPIFFE ID of path %q: %w", r.Path, err)
	}
	issued, err := m.sign(r, &x509.Certificate{
		Subject:     pkix.Name{SerialNumber: r.Instance},
		URIs:        []*url.URL{id.URL()},
		DNSNames:    []string{mesh.ProxyDNSName(r.Mesh, r.Dataplane)},
		KeyUsage:    usage,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, public, a.o.Now())
	if err == nil {
		err = m.records.write(r.Dataplane)
	}
	if err != nil {
		return Certificate{}, fmt.Errorf("issue certificate of %s: %w", r.ID(), err)
	}
	a.issued.WithLabelValues(r.Mesh).Inc()
	return issued, nil
}

// sign signs and records a certificate. No step of the rotation can begin in between.
func (m *meshAuthority) sign(r Request, template *x509.Certificate, public any, now time.Time) (Certificate, error) {
	s, release := m.Hold()
	defer release()
	leaf, err := s.Signing.Sign(template, public, now, r.Validity)
	if err != nil {
		return Certificate{}, err
	}
	c := Certificate{Chain: [][]byte{leaf.Raw}, Serial: leaf.SerialNumber.Text(16), NotAfter: leaf.NotAfter,
		Bundle: s.bundle}
	m.records.add(r.Subject, issuedCertificate{Serial: c.Serial, NotAfter: c.NotAfter, NotBefore: leaf.NotBefore,
		CA: s.Signing.ID, Path: r.Path}, now)
	return c, nil
}

// allowValidity stores the longest validity of certificates, which a rotation needs without records.
func (a *Authority) allowValidity(ctx context.Context, m *meshAuthority, validity time.Duration) error {
	if a.o.Records != nil || validity <= m.Current().longest {
		return nil
	}
	_, err := m.Change(ctx, func(s *state) (*state, error) {
		if validity <= s.longest {
			return nil, nil
		}
		longer := s.With(s.Set)
		longer.longest = validity
		return longer, nil
	})
	return err
}

// readRequest accepts the same keys as Envoy: ECDSA on P-256 or P-384, and RSA from 2048 bits, but not Ed25519.
func readRequest(der []byte) (public any, usage x509.KeyUsage, err error) {
	if len(der) > maxRequest {
		return nil, 0, fmt.Errorf("it has %d bytes: must have at most %d", len(der), maxRequest)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, 0, fmt.Errorf("it is not PKCS #10: %w", err)
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, 0, fmt.Errorf("its key is ECDSA on %s: must be on P-256 or P-384", key.Curve.Params().Name)
		}
		usage = x509.KeyUsageDigitalSignature
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < minRSABits || n > maxRSABits {
			return nil, 0, fmt.Errorf("its key is RSA of %d bits: must have from %d to %d", n, minRSABits, maxRSABits)
		}
		usage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	default:
		return nil, 0, fmt.Errorf("its key is %s: must be ECDSA on P-256 or P-384, or RSA", csr.PublicKeyAlgorithm)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, 0, errors.New("its signature is invalid")
	}
	return csr.PublicKey, usage, nil
}
