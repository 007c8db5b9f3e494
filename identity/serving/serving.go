// Package serving keeps the certificate with which the control plane serves agents, Envoy and sondectl, and the CA that signs
// it. That is none of the meshes' CAs.
package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// The serving CA in the storage. Agents and sondectl get its certificate by --ca-cert-file.
const (
	caFile = "serving-ca.crt"
	caKey  = "serving-ca.key"
)

const (
	caValidity          = 10 * 365 * 24 * time.Hour
	certificateValidity = 30 * 24 * time.Hour
)

// Storage keeps the CA. Read of a missing name returns an error that wraps fs.ErrNotExist. Write is atomic and durable, and
// never replaces what another process has written since this one read it. *store.State implements it.
type Storage interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
}

// Options of a Certificate.
type Options struct {
	// Storage is required.
	Storage Storage
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Certificate is the serving certificate. Its key is only in memory. It may be used from any goroutine.
type Certificate struct {
	ca  *ca.CA
	now func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	renew   time.Time
}

// Open opens the serving CA in the storage, or makes one, and makes a certificate.
func Open(o Options) (*Certificate, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	authority, err := openCA(o.Storage, o.Now())
	if err != nil {
		return nil, err
	}
	c := &Certificate{ca: authority, now: o.Now}
	if _, err := c.get(); err != nil {
		return nil, err
	}
	return c, ca.RegisterExpiry(o.Registerer, "", o.Now, func() *ca.CA { return authority })
}

func openCA(storage Storage, now time.Time) (*ca.CA, error) {
	certificate, err := storage.Read(caFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newCA(storage, now)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", caFile, err)
	}
	key, err := storage.Read(caKey)
	if err != nil {
		return nil, fmt.Errorf("read %s (to make both anew, remove %s): %w", caKey, caFile, err)
	}
	authority, err := ca.Parse(certificate, key)
	if err == nil && !authority.CanSign() {
		err = errors.New("the key is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("open %s and %s: %w", caFile, caKey, err)
	}
	return authority, nil
}

// newCA writes the key before the certificate, so that there is never a certificate without its key.
func newCA(storage Storage, now time.Time) (*ca.CA, error) {
	authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("Sonde control plane CA")}, now, caValidity)
	if err != nil {
		return nil, err
	}
	certificate, key := authority.Encode()
	if err := storage.Write(caKey, key); err != nil {
		return nil, fmt.Errorf("write %s: %w", caKey, err)
	}
	if err := storage.Write(caFile, certificate); err != nil {
		return nil, fmt.Errorf("write %s: %w", caFile, err)
	}
	return authority, nil
}

// get returns the certificate, and makes a new one after two thirds of the validity of the old one.
func (c *Certificate) get() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.current != nil && now.Before(c.renew) {
		return c.current, nil
	}
	key := ca.NewKey()
	leaf, err := c.ca.Sign(&x509.Certificate{
		Subject:     ca.Subject(mesh.ServingName),
		DNSNames:    []string{mesh.ServingName, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), now, certificateValidity)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	c.current = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	c.renew = now.Add(leaf.NotAfter.Sub(now) * 2 / 3)
	return c.current, nil
}

// CA returns the certificate of the CA against which clients verify the control plane, PEM.
func (c *Certificate) CA() []byte {
	certificate, _ := c.ca.Encode()
	return certificate
}

// TLS returns a configuration with the certificate, which asks clients for none.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get() },
	}
}
