package identity

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// ErrCANotFound says that a mesh has no CA: Ensure was never called for it.
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

// mesh returns the authority of a mesh, from memory or the storage. The error is ErrCANotFound if there is none: a mesh that
// only a foreign certificate names does not get a CA.
func (a *Authority) mesh(name string) (*meshAuthority, error) {
	if m := a.inMemory(name); m != nil {
		return m, nil
	}
	a.opening.Lock()
	defer a.opening.Unlock()
	return a.load(name)
}

// Ensure makes a CA with that validity (0: mesh.DefaultCAValidity) for a mesh that has none. A CA stays in the storage when its
// mesh is removed.
func (a *Authority) Ensure(meshName string, validity time.Duration) error {
	if a.inMemory(meshName) != nil {
		return nil
	}
	a.opening.Lock()
	defer a.opening.Unlock()
	_, err := a.load(meshName)
	if !errors.Is(err, ErrCANotFound) {
		return err
	}
	if err := a.create(meshName, validity); err != nil {
		return fmt.Errorf("make CA of mesh %q: %w", meshName, err)
	}
	return nil
}

func (a *Authority) inMemory(meshName string) *meshAuthority {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.meshes[meshName]
}

// load returns the authority of a mesh from the storage, unless it has come into memory meanwhile. opening is held.
func (a *Authority) load(meshName string) (*meshAuthority, error) {
	if m := a.inMemory(meshName); m != nil {
		return m, nil
	}
	if err := checkMesh(meshName); err != nil {
		return nil, err
	}
	s, err := a.read(meshName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("mesh %q: %w", meshName, ErrCANotFound)
	}
	var m *meshAuthority
	if err == nil {
		m, err = a.use(meshName, s)
	}
	if err != nil {
		return nil, fmt.Errorf("open CA of mesh %q: %w", meshName, err)
	}
	return m, nil
}

// create makes a CA. opening is held.
func (a *Authority) create(meshName string, validity time.Duration) error {
	td := a.trustDomain(meshName)
	c, err := a.newCA(meshName, td, validity)
	if err != nil {
		return err
	}
	s := newState(td, []*ca.CA{c}, c, nil)
	if err := a.write(meshName, s); err != nil {
		return err
	}
	if _, err := a.use(meshName, s); err != nil {
		return err
	}
	a.o.Logger.Info("CA made", "mesh", meshName, "ca", c.ID, "expires", c.Cert.NotAfter)
	return nil
}

// use puts an authority that is in the storage into memory. opening is held.
func (a *Authority) use(meshName string, s *state) (*meshAuthority, error) {
	records, err := loadRecords(a.o.Records, path.Join(meshesDirectory, meshName, "proxies"))
	if err != nil {
		return nil, err
	}
	m := &meshAuthority{mesh: meshName, records: records, warnings: rate.NewLimiter(rate.Every(warnEvery), 1)}
	m.current.Store(s)
	err = ca.RegisterExpiry(a.o.Registerer, meshName, a.o.Now, func() *ca.CA { return m.current.Load().signing })
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.meshes[meshName] = m
	return m, nil
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

// Meshes returns the names of the meshes that have a CA.
func (a *Authority) Meshes() ([]string, error) {
	names, err := a.o.Secrets.List(meshesDirectory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list CAs: %w", err)
	}
	return names, nil
}

// CAExpires returns when the CA that signs for the mesh expires, zero if the mesh has none.
func (a *Authority) CAExpires(meshName string) time.Time {
	m, err := a.mesh(meshName)
	if err != nil {
		return time.Time{}
	}
	return m.current.Load().signing.Cert.NotAfter
}

// warnExpiry logs a CA that is in the last tenth of its validity.
func (a *Authority) warnExpiry(m *meshAuthority) {
	signing, now := m.current.Load().signing, a.o.Now()
	cert := signing.Cert
	if cert.NotAfter.Sub(now) <= cert.NotAfter.Sub(cert.NotBefore)/10 && m.warnings.AllowN(now, 1) {
		a.o.Logger.Warn("CA expires soon: rotate it", "mesh", m.mesh, "ca", signing.ID, "expires", cert.NotAfter)
	}
}
