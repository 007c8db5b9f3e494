// Package identity manages the credentials of the control plane: the certificate authority of each mesh and its rotation,
// the certificates of proxies, the control plane's own serving certificate, and tokens.
package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Storage keeps what must survive a restart. Names are slash-separated paths. Write is atomic and durable, and only the
// owner can read the files. Read of a missing name returns an error that wraps fs.ErrNotExist. List returns the names in a
// directory. *store.State implements it.
type Storage interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(dir string) ([]string, error)
}

// Options of an Authority.
type Options struct {
	// Storage is required.
	Storage Storage
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

// Authority issues and checks all credentials of the control plane. Its methods may be called from any goroutine.
type Authority struct {
	storage Storage
	suffix  string
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics

	serving    *serving
	adminToken string
	tokens     *tokens
	refusals   *rate.Limiter // of log messages that unauthenticated clients can cause

	mu     sync.Mutex
	meshes map[string]*meshAuthority
}

// New opens the authority in the storage, and creates what is missing: the serving CA, the admin token, the key of
// dataplane tokens. CAs of meshes are made by Ensure.
func New(o Options) (*Authority, error) {
	if o.Storage == nil {
		return nil, errors.New("identity: Options.Storage is missing")
	}
	if o.TrustDomain == "" {
		o.TrustDomain = mesh.DefaultTrustDomain
	}
	if _, err := spiffeid.TrustDomainFromString(o.TrustDomain); err != nil {
		return nil, fmt.Errorf("read trust domain %q: %w", o.TrustDomain, err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authority{
		storage:  o.Storage,
		suffix:   o.TrustDomain,
		log:      o.Logger,
		now:      o.Now,
		meshes:   map[string]*meshAuthority{},
		refusals: rate.NewLimiter(1, 10), // a client that is refused reconnects at once
	}
	var err error
	if a.serving, err = openServing(o.Storage, o.Now); err != nil {
		return nil, err
	}
	if a.adminToken, err = openAdminToken(o.Storage); err != nil {
		return nil, err
	}
	if a.tokens, err = openTokens(o.Storage, o.Now); err != nil {
		return nil, err
	}
	if a.metrics, err = newMetrics(a, o.Registerer); err != nil {
		return nil, err
	}
	return a, nil
}

// TrustDomain returns the suffix of all trust domains.
func (a *Authority) TrustDomain() string { return a.suffix }

var (
	label   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	domain  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	segment = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// Limits on names: a DNS name has at most 253 characters, a SPIFFE ID at most 2048 bytes.
const (
	maxDNSName  = 253
	maxWorkload = 512
)

// checkNames refuses names that do not fit into a certificate, or that would lead out of their directory in the storage.
func checkNames(meshName, dataplane string) error {
	if !label.MatchString(meshName) {
		return fmt.Errorf("mesh %q: must be a DNS label", shorten(meshName))
	}
	if !domain.MatchString(dataplane) {
		return fmt.Errorf("dataplane %q: must be a DNS subdomain", shorten(dataplane))
	}
	if n := len(mesh.ProxyDNSName(meshName, dataplane)); n > maxDNSName {
		return fmt.Errorf("dataplane %q: its name in the certificate would have %d characters, at most %d are allowed",
			shorten(dataplane), n, maxDNSName)
	}
	return nil
}

func checkWorkload(workload string) error {
	if !segment.MatchString(workload) || workload == "." || workload == ".." || len(workload) > maxWorkload {
		return fmt.Errorf("workload %q: must be letters, digits, '.', '_' or '-', at most %d", shorten(workload), maxWorkload)
	}
	return nil
}

// shorten limits how much of a caller's input is in an error.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// missing reports whether an error of the storage means that the name does not exist.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// inMemory returns the authorities that are in memory.
func (a *Authority) inMemory() []*meshAuthority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.meshes))
}
