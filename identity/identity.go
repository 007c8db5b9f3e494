// Package identity holds the certificate authorities of the meshes, which issue and verify proxy certificates and can
// be rotated. The control plane's own certificate is in identity/serving, its tokens are in identity/token.
package identity

import (
	"cmp"
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

// Secrets stores the CAs with their keys. store.Secrets and *secrets.Store implement it.
type Secrets interface {
	secret.Shared
	// List returns the names in a directory, none if it does not exist.
	List(ctx context.Context, directory string) ([]string, error)
}

// Records stores the certificates of each proxy, without keys. Names are slash-separated paths. Read of a missing name
// returns an error that wraps fs.ErrNotExist. Write is atomic. It is durable once the data is on disk, which may be
// after Write returns. List returns the names in a directory. *store.Records implements it.
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
	// Proxies returns the names of a mesh's Dataplanes with their instances, and false while they are unknown. It is
	// for sources that list all proxies, such as Kubernetes: then records are kept in memory only, and a rotation waits
	// for these proxies.
	Proxies func(meshName string) (proxies iter.Seq2[string, string], known bool)
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain. It is part of every certificate: a
	// stored CA with another suffix is an error.
	TrustDomain string
	// Logger. Default: no logging.
	Logger *slog.Logger
	// Registerer of the metrics. Default: no metrics.
	Registerer prometheus.Registerer
	// Followed is called by Run after Run has loaded a change that another process has made to the CA of a mesh.
	// Default: no call.
	Followed func(meshName string)
	// Loop monitors Run. Default: none.
	Loop *heartbeat.Loop
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Authority holds the certificate authorities of all meshes in memory: verifying a certificate never waits for storage.
// Its methods may be called from any goroutine.
type Authority struct {
	o      Options
	issued *prometheus.CounterVec

	opening singleflight.Group // by mesh: reads or creates each CA only once
	mu      sync.Mutex         // guards meshes
	meshes  map[string]*meshAuthority
}

// New returns the authority with the stored CAs. Ensure creates new ones. The caller must call Run.
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
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
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

// trustDomain returns the trust domain of a mesh, whose name is a DNS label.
func (a *Authority) trustDomain(meshName string) spiffeid.TrustDomain {
	return spiffeid.RequireTrustDomainFromString(mesh.TrustDomain(meshName, a.o.TrustDomain))
}
