// Package serving keeps the certificate with which the control plane serves agents, Envoy and sondectl, and the CA that
// signs it. It is not a mesh's CA, but rotates like one.
package serving

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"github.com/sonde-mesh/sonde/internal/run"
)

const caValidity = 10 * 365 * 24 * time.Hour

// Options of a Certificate.
type Options struct {
	// Storage is required.
	Storage secret.Shared
	// Names are DNS names of the certificate besides mesh.ServingName, such as the control plane's Service.
	Names []string
	// Logger. Default: no logging.
	Logger *slog.Logger
	// Registerer of the metrics. Default: no metrics.
	Registerer prometheus.Registerer
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Certificate is the serving certificate. Its key is only in memory. It may be used from any goroutine.
type Certificate struct {
	o      Options
	shared *ca.Shared[*state]
	// copied is the state whose copies were last written; nil if the write failed, with copiesErr. copying is held
	// during writes.
	copying   sync.Mutex
	copied    atomic.Pointer[state]
	copiesErr atomic.Pointer[error]

	leaf *ownLeaf

	mu      sync.Mutex // guards changed
	changed []run.Signal
}

// Open opens or creates the serving CA in the storage, and creates a certificate. The caller must call Run.
func Open(ctx context.Context, o Options) (*Certificate, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	c := &Certificate{o: o}
	c.shared = &ca.Shared[*state]{Storage: o.Storage, Name: stateName, Decode: decodeState, Used: c.used, Now: o.Now}
	if _, err := c.shared.Open(ctx, func() (*state, error) { return c.create(ctx) }); err != nil {
		return nil, err
	}
	if err := c.after(ctx, nil); err != nil {
		return nil, err
	}
	c.leaf = &ownLeaf{of: c, template: x509.Certificate{
		Subject:     ca.Subject(mesh.ServingName),
		DNSNames:    append([]string{mesh.ServingName, "localhost"}, o.Names...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}}
	if _, err := c.leaf.get(); err != nil {
		return nil, err
	}
	return c, c.shared.Register(o.Registerer, "")
}

// Signing returns the CA that signs. The certificate is valid as soon as this CA is.
func (c *Certificate) Signing() *x509.Certificate { return c.shared.Current().Signing.Cert }

// CA returns the PEM certificates of all CAs with which clients verify the control plane, two during a rotation.
func (c *Certificate) CA() []byte { return c.shared.Current().pem() }

// Trusted returns the same CAs as a bundle for agents.
func (c *Certificate) Trusted() identity.Bundle { return identity.BundleOf(c.shared.Current().Set) }

// Changed returns a channel that receives after a change of the CAs, of the CA that signs, or of the step of a
// rotation.
func (c *Certificate) Changed() <-chan struct{} {
	changed := run.NewSignal()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, changed)
	return changed
}

// TLS returns a configuration with the certificate, without client certificates.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.leaf.get() },
	}
}
