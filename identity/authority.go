package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// ErrCANotFound says that a mesh has no CA: Ensure was never called for it, or is not done.
var ErrCANotFound = errors.New("CA not found")

// warnEvery is how often a CA that expires soon is logged.
const warnEvery = 24 * time.Hour

// meshAuthority is the certificate authority of one mesh: its CAs, and the certificates that they have issued.
type meshAuthority struct {
	mesh string
	// current is what the storage has. Handshakes read it without waiting for a lock.
	current atomic.Pointer[state]
	// step is locked from the decision on a step of the rotation until the step is in use, which includes a write to the
	// storage, and read-locked while a certificate is signed and added to records: each step knows of every certificate
	// that was issued before it.
	step     sync.RWMutex
	records  *records
	warnings *rate.Limiter // that the CA expires soon
}

// openTimeout is how long reading or making a CA may take. It does not end with the caller's context, since others may wait
// for the same CA.
const openTimeout = 15 * time.Second

// mesh returns the authority of a mesh. The error is ErrCANotFound if there is none: a mesh that only a foreign certificate names
// does not get a CA.
func (a *Authority) mesh(name string) (*meshAuthority, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.meshes[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("mesh %q: %w", shorten(name), ErrCANotFound)
}

// Ensure makes a CA with that validity (0: mesh.DefaultCAValidity) for a mesh that has none. If several processes do, all of them
// use the CA of the first. A CA stays in the storage when its mesh is removed.
func (a *Authority) Ensure(ctx context.Context, meshName string, validity time.Duration) error {
	if err := checkMesh(meshName); err != nil {
		return err
	}
	make := func(ctx context.Context) error {
		err := a.open(ctx, meshName)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err = a.create(ctx, meshName, validity)
		if errors.Is(err, fs.ErrExist) {
			return a.open(ctx, meshName)
		}
		if err != nil {
			return fmt.Errorf("make CA of mesh %q: %w", meshName, err)
		}
		return nil
	}
	err := a.openOnce(ctx, meshName, make)
	if errors.Is(err, fs.ErrNotExist) { // of a call that only opens
		err = a.openOnce(ctx, meshName, make)
	}
	return err
}

// openOnce calls open if the CA of a mesh is not in memory. Of several calls at once for one mesh, one opens.
func (a *Authority) openOnce(ctx context.Context, meshName string, open func(context.Context) error) error {
	_, err, _ := a.opening.Do(meshName, func() (any, error) {
		if _, err := a.mesh(meshName); err == nil {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
		defer cancel()
		return nil, open(ctx)
	})
	return err
}

// openAll takes all CAs of the storage into memory.
func (a *Authority) openAll(ctx context.Context) error {
	names, err := a.o.Secrets.List(ctx, meshesDirectory)
	if err != nil {
		return fmt.Errorf("list CAs: %w", err)
	}
	for _, name := range names {
		err := a.openOnce(ctx, name, func(ctx context.Context) error { return a.open(ctx, name) })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// open takes the CA of a mesh from the storage into memory. The error wraps fs.ErrNotExist if there is none.
func (a *Authority) open(ctx context.Context, meshName string) error {
	s, err := a.read(ctx, meshName)
	if err == nil {
		err = a.use(meshName, s)
	}
	if err != nil {
		return fmt.Errorf("open CA of mesh %q: %w", meshName, err)
	}
	return nil
}

// create makes a CA. The error wraps fs.ErrExist if another process has made one.
func (a *Authority) create(ctx context.Context, meshName string, validity time.Duration) error {
	td := a.trustDomain(meshName)
	c, err := a.newCA(meshName, td, validity)
	if err != nil {
		return err
	}
	s := newState(td, &ca.Set{CAs: []*ca.CA{c}, Signing: c, Epoch: a.o.Now().Unix()})
	data, err := s.encode()
	if err != nil {
		return err
	}
	if s.version, err = a.o.Secrets.Create(ctx, secretPath(meshName), data); err != nil {
		return err
	}
	a.o.Logger.InfoContext(ctx, "CA created", "mesh", meshName, "ca", c.ID, "expires", c.Cert.NotAfter)
	return a.use(meshName, s)
}

// use puts an authority that is in the storage into memory.
func (a *Authority) use(meshName string, s *state) error {
	records, err := loadRecords(a.o.Records, path.Join(meshesDirectory, meshName, "proxies"), s.Signing.Cert.NotAfter, a.o.Logger)
	if err != nil {
		return err
	}
	m := &meshAuthority{mesh: meshName, records: records, warnings: rate.NewLimiter(rate.Every(warnEvery), 1)}
	a.put(m, s)
	err = ca.RegisterExpiry(a.o.Registerer, meshName, a.o.Now, func() *ca.CA { return m.current.Load().Signing })
	if err == nil {
		err = ca.RegisterEpoch(a.o.Registerer, meshName, func() *ca.Set { return m.current.Load().Set })
	}
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meshes[meshName] = m
	return nil
}

// put makes a state that is in the storage the current one.
func (a *Authority) put(m *meshAuthority, s *state) {
	s.since = a.o.Now()
	m.current.Store(s)
}

// newCA makes a CA that may only sign for its mesh: verifiers check its name constraints.
func (a *Authority) newCA(meshName string, td spiffeid.TrustDomain, validity time.Duration) (*ca.CA, error) {
	if validity <= 0 {
		validity = mesh.DefaultCAValidity
	}
	return ca.New(&x509.Certificate{
		Subject:                     ca.Subject("Sonde CA of mesh " + meshName),
		URIs:                        []*url.URL{td.ID().URL()},
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         []string{meshName + "." + mesh.ProxyDomain},
		PermittedURIDomains:         []string{td.Name()},
	}, a.o.Now(), validity)
}

// Meshes returns the names of the meshes that have a CA, sorted.
func (a *Authority) Meshes() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.meshes))
}

// CAExpires returns when the CA that signs for the mesh expires, zero if the mesh has none.
func (a *Authority) CAExpires(meshName string) time.Time {
	m, err := a.mesh(meshName)
	if err != nil {
		return time.Time{}
	}
	return m.current.Load().Signing.Cert.NotAfter
}

// warnExpiry logs a CA that is in the last tenth of its validity.
func (a *Authority) warnExpiry(m *meshAuthority) {
	signing, now := m.current.Load().Signing, a.o.Now()
	cert := signing.Cert
	if cert.NotAfter.Sub(now) <= cert.NotAfter.Sub(cert.NotBefore)/10 && m.warnings.AllowN(now, 1) {
		a.o.Logger.Warn("CA expires soon: rotate it", "mesh", m.mesh, "ca", signing.ID, "expires", cert.NotAfter)
	}
}
