package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// warnEvery is how often a CA that expires soon is logged.
const warnEvery = 24 * time.Hour

// Meshes returns the names of the meshes that have a CA.
func (a *Authority) Meshes() ([]string, error) {
	names, err := a.o.Secrets.List("meshes")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list CAs: %w", err)
	}
	return names, nil
}

// Sweep removes the records of proxies whose certificates have expired, except those that keep wants, and returns these
// proxies. It also logs CAs that expire soon. It should be called from time to time. keep must not call the Authority.
func (a *Authority) Sweep(keep func(proxy mesh.ID) bool) ([]mesh.ID, error) {
	names, err := a.Meshes()
	if err != nil {
		return nil, err
	}
	var forgotten []mesh.ID
	var problems []error
	for _, name := range names {
		m, err := a.open(name, nil)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		a.warnExpiry(m)
		gone, err := a.forgetExpired(m, func(dataplane string) bool { return keep(mesh.MakeID(name, dataplane)) })
		for _, dataplane := range gone {
			forgotten = append(forgotten, mesh.MakeID(name, dataplane))
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("mesh %q: %w", name, err))
		}
	}
	return forgotten, errors.Join(problems...)
}

// warnExpiry logs a CA that is in the last tenth of its life.
func (a *Authority) warnExpiry(m *meshAuthority) {
	m.mu.Lock()
	defer m.mu.Unlock()
	cert, now := m.signing.Cert, a.o.Now()
	left := cert.NotAfter.Sub(now)
	if left > cert.NotAfter.Sub(cert.NotBefore)/10 || now.Sub(m.warned) < warnEvery {
		return
	}
	m.warned = now
	a.o.Logger.Warn("CA expires soon: rotate it", "mesh", m.mesh, "ca", m.signing.ID, "expires", cert.NotAfter)
}

// CAExpires returns when the CA that signs for the mesh expires, zero if the mesh has none.
func (a *Authority) CAExpires(meshName string) time.Time {
	m, err := a.open(meshName, nil)
	if err != nil {
		return time.Time{}
	}
	return m.trust.Load().signing.Cert.NotAfter
}

// HasCertificate reports whether a certificate that was issued to the proxy is still valid.
func (a *Authority) HasCertificate(meshName, dataplane string) bool {
	m, err := a.open(meshName, nil)
	if err != nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.proxies[dataplane]
	return r != nil && a.o.Now().Before(r.expires())
}
