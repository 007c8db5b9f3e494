package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

// replicaPath begins the path of the SPIFFE ID of a replica of the control plane, which its name ends. No proxy has such a certificate: it is
// signed by the serving CA, and not by that of a mesh.
const replicaPath = "/control-plane/replica/"

// Replica has the certificate with which a replica of the control plane serves and calls the others. Its key is only in memory.
type Replica struct {
	certificate       *Certificate
	trustDomain, name string

	mu     sync.Mutex
	leaf   *tls.Certificate
	signer string // ID of the CA of leaf
	renew  time.Time
}

// Replica returns that of the replica of a name, in a trust domain. Both must be valid in a URI.
func (c *Certificate) Replica(trustDomain, name string) *Replica {
	return &Replica{certificate: c, trustDomain: trustDomain, name: name}
}

func (r *Replica) get() (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, signing := r.certificate.o.Now(), r.certificate.current.Load().Signing
	if r.signer == signing.ID && now.Before(r.renew) {
		return r.leaf, nil
	}
	key := ca.NewKey()
	leaf, err := signing.Sign(&x509.Certificate{
		Subject:     ca.Subject("replica " + r.name),
		URIs:        []*url.URL{{Scheme: "spiffe", Host: r.trustDomain, Path: replicaPath + r.name}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key.Public(), now, certificateValidity)
	if err != nil {
		return nil, fmt.Errorf("make certificate of the replica: %w", err)
	}
	r.leaf = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	r.signer, r.renew = signing.ID, now.Add(leaf.NotAfter.Sub(now)*2/3)
	return r.leaf, nil
}

// Server returns a configuration that accepts callers which are replicas.
func (r *Replica) Server() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		ClientAuth:       tls.RequireAnyClientCert, // VerifyConnection verifies it
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.get() },
		VerifyConnection: r.verify,
	}
}

// Client returns a configuration that calls replicas alone.
func (r *Replica) Client() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, //nolint:gosec // VerifyConnection verifies it: a replica has no DNS name, and the CA may change
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.get() },
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
	for _, trusted := range r.certificate.current.Load().CAs {
		roots.AddCert(trusted.Cert)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} { // a serving certificate has but one
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: r.certificate.o.Now(), KeyUsages: []x509.ExtKeyUsage{usage}})
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
