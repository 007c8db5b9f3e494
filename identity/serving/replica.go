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

// replicaPath begins the path of the SPIFFE ID of a replica of the control plane, which its name ends. No proxy has such a certificate: it is
// signed by the serving CA, and not by that of a mesh.
const replicaPath = "/control-plane/replica/"

// Replica has the certificate with which a replica of the control plane serves and calls the others. Its key is only in memory.
type Replica struct {
	leaf        *ownLeaf
	trustDomain string
}

// Replica returns that of the replica of a name, in a trust domain. Both must be valid in a URI.
func (c *Certificate) Replica(trustDomain, name string) *Replica {
	return &Replica{trustDomain: trustDomain, leaf: &ownLeaf{of: c, template: x509.Certificate{
		Subject:     ca.Subject("replica " + name),
		URIs:        []*url.URL{{Scheme: "spiffe", Host: trustDomain, Path: replicaPath + name}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}}}
}

// Server returns a configuration that accepts callers which are replicas.
func (r *Replica) Server() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		ClientAuth:       tls.RequireAnyClientCert, // VerifyConnection verifies it
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.leaf.get() },
		VerifyConnection: r.verify,
	}
}

// Client returns a configuration that calls replicas alone.
func (r *Replica) Client() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, //nolint:gosec // VerifyConnection verifies it: a replica has no DNS name, and the CA may change
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.leaf.get() },
		VerifyConnection:     r.verify,
	}
}

func (r *Replica) verify(state tls.ConnectionState) error {
	_, err := r.NameOf(state)
	return err
}

// NameOf returns the name of the replica at the other end of a connection. The error says why its certificate is none of a replica.
func (r *Replica) NameOf(state tls.ConnectionState) (string, error) {
	if len(state.PeerCertificates) == 0 {
		return "", errors.New("it has no certificate")
	}
	leaf, roots := state.PeerCertificates[0], x509.NewCertPool()
	now := ca.TimeFor(r.leaf.of.o.Now(), leaf) // one of an earlier release has a NotBefore of its own
	for _, trusted := range r.leaf.of.shared.Current().CAs {
		roots.AddCert(trusted.Cert)
		if bytes.Equal(trusted.Cert.RawSubject, leaf.RawIssuer) {
			now = ca.TimeFor(now, trusted.Cert)
		}
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} { // a serving certificate has but one
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
		if err != nil {
			return "", fmt.Errorf("its certificate is none of a replica: %w", err)
		}
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "spiffe" {
		return "", errors.New("its certificate is none of a replica: it has no SPIFFE ID")
	}
	id := leaf.URIs[0]
	name, isReplica := strings.CutPrefix(id.Path, replicaPath)
	if id.Host != r.trustDomain || !isReplica || name == "" {
		return "", fmt.Errorf("its certificate has SPIFFE ID %s: must be spiffe://%s%sNAME", id, r.trustDomain, replicaPath)
	}
	return name, nil
}
