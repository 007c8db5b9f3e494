// Package identity is who is who: each mesh's certificate authority, the control plane's own certificate, and tokens.
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

// Storage keeps what must survive a restart. Names are slash paths. Write is atomic and durable, and only the owner can
// read what it wrote; Read of a missing name is fs.ErrNotExist; List gives the entries of a folder.
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
	// TrustDomain ends the trust domain of each mesh. Default mesh.DefaultTrustDomain. It is part of every certificate:
	// an authority made for another one is refused.
	TrustDomain string
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Authority issues and checks every credential of the control plane. Its methods may be called from any goroutine.
type Authority struct {
	storage Storage
	suffix  string
	log     *slog.Logger
	now     func() time.Time
	metrics *metrics

	serving    *serving
	adminToken string
	tokens     *tokens
	refusals   *rate.Limiter // of what strangers can write into the log

	mu     sync.Mutex
	meshes map[string]*meshAuthority
}

// New opens the authority in the storage, and makes what is missing in it: the serving CA, the admin token, the key of
// dataplane tokens. A mesh's CA is made by Ensure.
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
		storage: o.Storage,
		suffix:  o.TrustDomain,
		log:     o.Logger,
		now:     o.Now,
		meshes:  map[string]*meshAuthority{},
		// One who is refused will come again at once.
		refusals: rate.NewLimiter(1, 10),
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

// TrustDomain is the end of each mesh's trust domain.
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

// checkNames refuses what would not fit into a certificate, or would leave its folder in the storage.
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

// shorten bounds what a caller's input adds to an error.
func shorten(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// missing says whether an error of the storage means that there is nothing of that name.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// inMemory lists the authorities that are in memory.
func (a *Authority) inMemory() []*meshAuthority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.meshes))
}
