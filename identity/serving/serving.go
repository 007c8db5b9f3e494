// Package serving keeps the certificate with which the control plane serves agents, Envoy and sondectl, and the CA that signs
// it. That is none of the meshes' CAs.
package serving

import (
	"context"
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
	"github.com/sonde-mesh/sonde/identity/secret"
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

// Options of a Certificate.
type Options struct {
	// Storage is required.
	Storage secret.Store
	// Names are DNS names of the certificate besides mesh.ServingName, such as that of the control plane's Service.
	Names []string
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Certificate is the serving certificate. Its key is only in memory. It may be used from any goroutine.
type Certificate struct {
	ca    *ca.CA
	names []string
	now   func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	renew   time.Time
}

// Open opens the serving CA in the storage, or makes one, and makes a certificate.
func Open(ctx context.Context, o Options) (*Certificate, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	authority, err := openCA(ctx, o.Storage, o.Now())
	if err != nil {
		return nil, err
	}
	c := &Certificate{ca: authority, names: append([]string{mesh.ServingName, "localhost"}, o.Names...), now: o.Now}
	if _, err := c.get(); err != nil {
		return nil, err
	}
	return c, ca.RegisterExpiry(o.Registerer, "", o.Now, func() *ca.CA { return authority })
}

// openCA opens the key before the certificate, so that there is never a certificate without its key. Processes that start at
// once agree on the key, and then on one certificate of it.
func openCA(ctx context.Context, storage secret.Store, now time.Time) (*ca.CA, error) {
	certificate, _, err := storage.Read(ctx, caFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newCA(ctx, storage, now)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", caFile, err)
	}
	key, _, err := storage.Read(ctx, caKey)
	if err != nil {
		return nil, fmt.Errorf("read %s (to make both anew, remove %s): %w", caKey, caFile, err)
	}
	return parseCA(certificate, key)
}

func parseCA(certificate, key []byte) (*ca.CA, error) {
	authority, err := ca.Parse(certificate, key)
	if err == nil && !authority.CanSign() {
		err = errors.New("the key is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("open %s and %s: %w", caFile, caKey, err)
	}
	return authority, nil
}

func newCA(ctx context.Context, storage secret.Store, now time.Time) (*ca.CA, error) {
	key, err := secret.ReadOrCreate(ctx, storage, caKey, func() ([]byte, error) { return ca.EncodeKey(ca.NewKey()), nil })
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", caKey, err)
	}
	certificate, err := secret.ReadOrCreate(ctx, storage, caFile, func() ([]byte, error) {
		private, err := ca.DecodeKey(key)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", caKey, err)
		}
		authority, err := ca.NewOf(private, &x509.Certificate{Subject: ca.Subject("Sonde control plane CA")}, now, caValidity)
		if err != nil {
			return nil, err
		}
		certificate, _ := authority.Encode()
		return certificate, nil
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", caFile, err)
	}
	return parseCA(certificate, key)
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
		DNSNames:    c.names,
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
