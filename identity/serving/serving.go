// Package serving keeps the certificate with which the control plane serves agents, Envoy and sondectl, and the CA that signs
// it. That is none of the meshes' CAs. It is rotated as they are.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/secret"
)

const (
	caValidity          = 10 * 365 * 24 * time.Hour
	certificateValidity = 30 * 24 * time.Hour
)

// Options of a Certificate.
type Options struct {
	// Storage is required.
	Storage secret.Shared
	// Names are DNS names of the certificate besides mesh.ServingName, such as that of the control plane's Service.
	Names []string
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Certificate is the serving certificate. Its key is only in memory. It may be used from any goroutine.
type Certificate struct {
	o     Options
	names []string
	// current is what the storage has. step is held from the decision on a step of the rotation until it is in use.
	current atomic.Pointer[state]
	step    sync.Mutex
	// copied is what the copies in the storage were last written of, copiesErr why that failed, nil if it did not.
	copied    atomic.Pointer[state]
	copiesErr atomic.Pointer[error]

	mu      sync.Mutex // guards what follows
	leaf    *tls.Certificate
	signer  string // the ID of the CA that has signed the leaf
	renew   time.Time
	changed []chan struct{}
}

// Open opens the serving CA in the storage, or makes one, and makes a certificate. Run has to be called.
func Open(ctx context.Context, o Options) (*Certificate, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Certificate{o: o, names: append([]string{mesh.ServingName, "localhost"}, o.Names...)}
	s, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	c.put(s)
	if err := c.writeCopies(ctx); err != nil {
		return nil, err
	}
	if _, err := c.get(); err != nil {
		return nil, err
	}
	err = ca.RegisterExpiry(o.Registerer, "", o.Now, func() *ca.CA { return c.current.Load().Signing })
	if err == nil {
		err = ca.RegisterEpoch(o.Registerer, "", func() *ca.Set { return c.current.Load().Set })
	}
	return c, err
}

// get returns the certificate, and makes a new one after two thirds of the validity of the old one, and when another CA signs.
func (c *Certificate) get() (*tls.Certificate, error) {
	s := c.current.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.o.Now()
	if c.signer == s.Signing.ID && now.Before(c.renew) {
		return c.leaf, nil
	}
	key := ca.NewKey()
	leaf, err := s.Signing.Sign(&x509.Certificate{
		Subject:     ca.Subject(mesh.ServingName),
		DNSNames:    c.names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), now, certificateValidity)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	c.leaf = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	c.signer, c.renew = s.Signing.ID, now.Add(leaf.NotAfter.Sub(now)*2/3)
	return c.leaf, nil
}

// CA returns the certificates of all CAs against which clients verify the control plane, PEM: during a rotation there are two.
func (c *Certificate) CA() []byte { return c.current.Load().pem() }

// Trusted returns what CA does as agents get it.
func (c *Certificate) Trusted() identity.Bundle {
	s := c.current.Load()
	b := identity.Bundle{ID: s.ID(), Epoch: s.Epoch}
	for _, trusted := range s.CAs {
		b.Roots = append(b.Roots, trusted.Cert.Raw)
	}
	return b
}

// Changed returns a channel that receives after CA has changed, or which of them signs, or the step of a rotation.
func (c *Certificate) Changed() <-chan struct{} {
	changed := make(chan struct{}, 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, changed)
	return changed
}

// TLS returns a configuration with the certificate, which asks clients for none.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get() },
	}
}
