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
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// ErrCANotFound means that a mesh has no CA: Ensure was not called for it, or has not finished.
var ErrCANotFound = errors.New("CA not found")

// warnEvery is the interval of warnings about a CA that expires soon.
const warnEvery = 24 * time.Hour

// meshAuthority is the certificate authority of one mesh: its CAs, and the certificates they have issued. The state
// cannot change between signing and recording a certificate, so each step of a rotation knows every certificate issued
// before.
type meshAuthority struct {
	*ca.Shared[*state]
	mesh     string
	records  *records
	warnings *rate.Limiter // limits warnings about a CA that expires soon
}

// openTimeout bounds reading or creating a CA. It is independent of the caller's context, since other callers may wait
// for the same CA.
const openTimeout = 15 * time.Second

// mesh returns the authority of a mesh, or ErrCANotFound. It never creates a CA, since a foreign certificate may name
// any mesh.
func (a *Authority) mesh(name string) (*meshAuthority, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.meshes[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("mesh %q: %w", shorten(name), ErrCANotFound)
}

// Ensure creates a CA with this validity (0: mesh.DefaultCAValidity) for a mesh without one. If several processes do
// so, all use the first one's CA. The storage keeps a CA after its mesh is removed.
func (a *Authority) Ensure(ctx context.Context, meshName string, validity time.Duration) error {
	if err := checkMesh(meshName); err != nil {
		return err
	}
	create := func() (*state, error) {
		c, err := a.newCA(meshName, validity)
		if err != nil {
			return nil, err
		}
		return newState(a.trustDomain(meshName), ca.NewSet(c, a.o.Now())), nil
	}
	err := a.openOnce(ctx, meshName, create)
	if errors.Is(err, fs.ErrNotExist) { // another caller only opens, and does not create
		err = a.openOnce(ctx, meshName, create)
	}
	return err
}

// openOnce opens the CA of a mesh that is not in memory. Concurrent calls for one mesh share one read.
func (a *Authority) openOnce(ctx context.Context, meshName string, create func() (*state, error)) error {
	_, err, _ := a.opening.Do(meshName, func() (any, error) {
		if _, err := a.mesh(meshName); err == nil {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openTimeout)
		defer cancel()
		if err := a.open(ctx, meshName, create); err != nil {
			return nil, fmt.Errorf("open CA of mesh %q: %w", meshName, err)
		}
		return nil, nil
	})
	return err
}

// openAll loads all CAs of the storage into memory.
func (a *Authority) openAll(ctx context.Context) error {
	names, err := a.o.Secrets.List(ctx, meshesDirectory)
	if err != nil {
		return fmt.Errorf("list CAs: %w", err)
	}
	for _, name := range names {
		if err := a.openOnce(ctx, name, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// open loads the CA of a mesh from the storage. Without create, the error for a missing CA wraps fs.ErrNotExist.
func (a *Authority) open(ctx context.Context, meshName string, create func() (*state, error)) error {
	m := &meshAuthority{mesh: meshName, warnings: rate.NewLimiter(rate.Every(warnEvery), 1), Shared: &ca.Shared[*state]{
		Storage: a.o.Secrets, Name: secretPath(meshName), Now: a.o.Now,
		Decode: func(data []byte) (*state, error) { return a.decodeState(meshName, data) },
		Used:   func(ctx context.Context, before, now *state) { a.logStep(ctx, meshName, before, now) },
	}}
	created, err := m.Open(ctx, create)
	if err != nil {
		return err
	}
	signing := m.Current().Signing
	directory := path.Join(meshesDirectory, meshName, "proxies")
	if m.records, err = loadRecords(a.o.Records, directory, signing.Cert.NotAfter, a.o.Logger); err != nil {
		return err
	}
	if err := m.Register(a.o.Registerer, meshName); err != nil {
		return err
	}
	a.mu.Lock()
	a.meshes[meshName] = m
	a.mu.Unlock()
	log := a.o.Logger.With("mesh", meshName, "ca", signing.ID, "expires", signing.Cert.NotAfter)
	if joined := len(m.records.all()); created && joined > 0 {
		log.ErrorContext(ctx, "CA not found, created another one: joined proxies are not trusted until they join again",
			"file", secretPath(meshName), "proxies", joined)
	} else if created {
		log.InfoContext(ctx, "created CA")
	}
	return nil
}

// newCA creates a CA that can only sign for its mesh: verifiers check its name constraints.
func (a *Authority) newCA(meshName string, validity time.Duration) (*ca.CA, error) {
	td := a.trustDomain(meshName)
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

// Meshes returns the sorted names of the meshes that have a CA.
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
	return m.Current().Signing.Cert.NotAfter
}

// CheckCAs returns an error for each of these meshes that cannot issue certificates.
func (a *Authority) CheckCAs(meshes []string) error {
	var errs []error
	for _, name := range meshes {
		switch expires := a.CAExpires(name); {
		case expires.IsZero():
			errs = append(errs, fmt.Errorf("mesh %q has no CA", name))
		case !a.o.Now().Before(expires):
			errs = append(errs, fmt.Errorf("the CA of mesh %q has expired at %s: rotate it",
				name, expires.UTC().Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}

// warnExpiry logs a CA in the last tenth of its validity.
func (a *Authority) warnExpiry(m *meshAuthority) {
	signing, now := m.Current().Signing, a.o.Now()
	cert := signing.Cert
	if cert.NotAfter.Sub(now) <= cert.NotAfter.Sub(cert.NotBefore)/10 && m.warnings.AllowN(now, 1) {
		a.o.Logger.Warn("CA expires soon: rotate it", "mesh", m.mesh, "ca", signing.ID, "expires", cert.NotAfter)
	}
}
