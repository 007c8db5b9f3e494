// Package identity has the certificate authorities of the meshes: they issue and verify the certificates of proxies, and are
// rotated. The control plane's own certificate is in identity/serving, its tokens are in identity/token.
package identity

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Secrets keeps the CAs with their keys. Names are slash-separated paths. Read of a missing name returns an error that wraps
// fs.ErrNotExist. Write is atomic and durable, and never replaces what another process has written since this one read it: two
// control planes must not make two CAs for a mesh. List returns the names in a directory. *store.State implements it.
type Secrets interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	List(directory string) ([]string, error)
}

// Records keeps which certificates each proxy has, without keys. *store.State implements it.
type Records interface {
	Secrets
	Remove(name string) error
}

// Options of an Authority.
type Options struct {
	// Secrets and Records are required. They may be the same.
	Secrets Secrets
	Records Records
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain. It is part of every certificate: a
	// CA in the storage that was made for another one is an error.
	TrustDomain string
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Authority has the certificate authorities of all meshes. Its methods may be called from any goroutine.
type Authority struct {
	o      Options
	issued *prometheus.CounterVec

	// opening is held while a CA is read or made, so that it is made once. Who uses a mesh in memory does not wait for it.
	opening sync.Mutex
	mu      sync.Mutex // guards meshes
	meshes  map[string]*meshAuthority
}

// New returns the authority of what is in the storage. CAs are made by Ensure.
func New(o Options) (*Authority, error) {
	if o.Secrets == nil || o.Records == nil {
		return nil, errors.New("identity: Options.Secrets and Options.Records are required")
	}
	if o.TrustDomain == "" {
		o.TrustDomain = mesh.DefaultTrustDomain
	}
	suffix, err := spiffeid.TrustDomainFromString(o.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("read trust domain %q: %w", o.TrustDomain, err)
	}
	o.TrustDomain = suffix.Name()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authority{o: o, meshes: map[string]*meshAuthority{}, issued: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_identity_certificates_issued_total",
		Help: "Certificates issued to proxies.",
	}, []string{"mesh"})}
	if o.Registerer != nil {
		if err := o.Registerer.Register(a.issued); err != nil {
			return nil, fmt.Errorf("register metrics of identity: %w", err)
		}
	}
	return a, nil
}

// TrustDomain returns the suffix of all trust domains.
func (a *Authority) TrustDomain() string { return a.o.TrustDomain }

// trustDomain returns that of a mesh, whose name is a DNS label.
func (a *Authority) trustDomain(meshName string) spiffeid.TrustDomain {
	return spiffeid.RequireTrustDomainFromString(mesh.TrustDomain(meshName, a.o.TrustDomain))
}
