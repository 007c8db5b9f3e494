package serving

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// replicaPath precedes the name of a replica in its SPIFFE path. Proxies cannot get such a certificate, since the
// serving CA signs it, not the CA of a mesh.
const replicaPath = "/control-plane/replica/"

// Replica holds the certificate with which a replica of the control plane serves and calls other replicas. Its key is
// only in memory.
type Replica struct {
	leaf        *ownLeaf
	trustDomain string
}

// Replica returns the Replica with a name in a trust domain. Both must be valid in a URI.
func (c *Certificate) Replica(trustDomain, name string) *Replica {
	return &Replica{trustDomain: trustDomain, leaf: &ownLeaf{of: c, template: x509.Certificate{
		Subject:     ca.Subject("replica " + name),
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: replicaPath + name}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}}}
}

// Server returns a configuration that accepts only replicas.
func (r *Replica) Server() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		ClientAuth:       tls.RequireAnyClientCert, // VerifyConnection verifies the certificate
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.leaf.get() },
		VerifyConnection: r.verify,
	}
}

// Client returns a configuration for calling replicas only.
func (r *Replica) Client() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, //nolint:gosec // VerifyConnection verifies: a replica has no DNS name, and the CA may change
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.leaf.get() },
		VerifyConnection:     r.verify,
	}
}

func (r *Replica) verify(state tls.ConnectionState) error {
	_, err := r.NameOf(state)
	return err
}

// NameOf returns the name of the replica at the other end of a connection, or an error if its certificate is not a
// replica's.
func (r *Replica) NameOf(state tls.ConnectionState) (string, error) {
	if len(state.PeerCertificates) == 0 {
		return "", errors.New("it has no certificate")
	}
	leaf, roots := state.PeerCertificates[0], x509.NewCertPool()
	now := ca.TimeFor(r.leaf.of.o.Now(), leaf) // certificates of earlier releases have their own NotBefore
	for _, trusted := range r.leaf.of.shared.Current().CAs {
		roots.AddCert(trusted.Cert)
		if bytes.Equal(trusted.Cert.RawSubject, leaf.RawIssuer) {
			now = ca.TimeFor(now, trusted.Cert)
		}
	}
	// a serving certificate has only one URI
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return "", fmt.Errorf("its certificate is not a replica's: %w", err)
		}
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "spiffe" {
		return "", errors.New("its certificate is not a replica's: it has no SPIFFE ID")
	}
	id := leaf.URIs[0]
	name, isReplica := strings.CutPrefix(id.Path, replicaPath)
	if id.Host != r.trustDomain || !isReplica || name == "" {
		return "", fmt.Errorf("its certificate has SPIFFE ID %s: must be spiffe://%s%sNAME", id, r.trustDomain, replicaPath)
	}
	return name, nil
}
