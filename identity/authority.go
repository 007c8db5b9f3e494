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

// ErrCANotFound says that a mesh has no CA: Ensure was never called for it, or is not done.
var ErrCANotFound = errors.New("CA not found")

// warnEvery is how often a CA that expires soon is logged.
const warnEvery = 24 * time.Hour

// meshAuthority is the certificate authority of one mesh: its CAs, and the certificates that they have issued. The
// state is held while a certificate is signed and added to records: each step of a rotation knows of every certificate
// that was issued before it.
type meshAuthority struct {
	*ca.Shared[*state]
	mesh     string
	records  *records
	warnings *rate.Limiter // that the CA expires soon
}

// openTimeout is how long reading or making a CA may take. It does not end with the caller's context, since others may
// wait for the same CA.
const openTimeout = 15 * time.Second

// mesh returns the authority of a mesh. The error is ErrCANotFound if there is none: a mesh that only a foreign
// certificate names does not get a CA.
func (a *Authority) mesh(name string) (*meshAuthority, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.meshes[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("mesh %q: %w", shorten(name), ErrCANotFound)
}

// Ensure makes a CA with that validity (0: mesh.DefaultCAValidity) for a mesh that has none. If several processes do,
// all of them use the CA of the first. A CA stays in the storage when its mesh is removed.
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
	if errors.Is(err, fs.ErrNotExist) { // of a call that only opens
		err = a.openOnce(ctx, meshName, create)
	}
	return err
}

// openOnce opens the CA of a mesh that is not in memory. Of several calls at once for one mesh, one opens.
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

// openAll takes all CAs of the storage into memory.
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

// open takes the CA of a mesh from the storage into memory. Without create the error wraps fs.ErrNotExist if there is
// none.
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
		log.ErrorContext(ctx, "CA not found, created another one: proxies that have joined are not trusted until they join again",
			"file", secretPath(meshName), "proxies", joined)
	} else if created {
		log.InfoContext(ctx, "CA created")
	}
	return nil
}

// newCA makes a CA that may only sign for its mesh: verifiers check its name constraints.
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
	return m.Current().Signing.Cert.NotAfter
}

// warnExpiry logs a CA that is in the last tenth of its validity.
func (a *Authority) warnExpiry(m *meshAuthority) {
	signing, now := m.Current().Signing, a.o.Now()
	cert := signing.Cert
	if cert.NotAfter.Sub(now) <= cert.NotAfter.Sub(cert.NotBefore)/10 && m.warnings.AllowN(now, 1) {
		a.o.Logger.Warn("CA expires soon: rotate it", "mesh", m.mesh, "ca", signing.ID, "expires", cert.NotAfter)
	}
}
