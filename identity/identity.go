// Package identity has the certificate authorities of the meshes: they issue and verify the certificates of proxies, and are
// rotated. The control plane's own certificate is in identity/serving, its tokens are in identity/token.
package identity

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/singleflight"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity/secret"
)

// Secrets keeps the CAs with their keys. store.Secrets and *secrets.Store implement it.
type Secrets interface {
	secret.Shared
	// List returns the names in a directory. One that does not exist is empty.
	List(ctx context.Context, directory string) ([]string, error)
}

// Records keeps which certificates each proxy has, without keys. Names are slash-separated paths. Read of a missing name returns
// an error that wraps fs.ErrNotExist, Write is atomic, and durable as soon as the disk takes it, List returns the names in a directory. *store.Records implements it.
type Records interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(directory string) ([]string, error)
}

// Options of an Authority.
type Options struct {
	// Secrets is required.
	Secrets Secrets
	// Records survive a restart. Without them Proxies is required.
	Records Records
	// Proxies returns the dataplanes of a mesh, each name with its instance, and false while they are not known yet. It is for sources that say
	// which proxies there are, such as Kubernetes: nothing is kept about a proxy then but in memory, and a rotation waits for
	// these proxies.
	Proxies func(meshName string) (proxies iter.Seq2[string, string], known bool)
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain. It is part of every certificate: a
	// CA in the storage that was made for another one is an error.
	TrustDomain string
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Followed is called by Run after it has taken over what another process has done to the CA of a mesh. Default: nothing.
	Followed func(meshName string)
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Authority has the certificate authorities of all meshes. All that it has is in memory: to verify a certificate waits for no
// storage. Its methods may be called from any goroutine.
type Authority struct {
	o      Options
	issued *prometheus.CounterVec

	opening singleflight.Group // by mesh: its CA is read or made once
	mu      sync.Mutex         // guards meshes
	meshes  map[string]*meshAuthority
}

// New returns the authority of what is in the storage. CAs are made by Ensure. Run has to be called.
func New(ctx context.Context, o Options) (*Authority, error) {
	if o.Secrets == nil || (o.Records == nil) == (o.Proxies == nil) {
		return nil, errors.New("identity: Options.Secrets and one of Options.Records and Options.Proxies are required")
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
	return a, a.openAll(ctx)
}

// TrustDomain returns the suffix of all trust domains.
func (a *Authority) TrustDomain() string { return a.o.TrustDomain }

// trustDomain returns that of a mesh, whose name is a DNS label.
func (a *Authority) trustDomain(meshName string) spiffeid.TrustDomain {
	return spiffeid.RequireTrustDomainFromString(mesh.TrustDomain(meshName, a.o.TrustDomain))
}
