package identity

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// ErrCANotFound says that a mesh has no CA: Ensure was never called for it.
var ErrCANotFound = errors.New("CA not found")

// Bundle is the set of CAs that a mesh trusts. It is immutable.
type Bundle struct {
	// ID is a hash of the roots that does not depend on their order.
	ID string
	// Roots are certificates, DER.
	Roots [][]byte
}

// meshAuthority is the certificate authority of one mesh: the CA that signs, and during a rotation another one that is
// trusted, too.
type meshAuthority struct {
	mesh string
	// trust is what handshakes verify against, without waiting for a lock.
	trust atomic.Pointer[trust]

	// io is read-locked while a record of a proxy is written, and locked while records are removed.
	io sync.RWMutex

	mu       sync.Mutex
	cas      []*ca.CA // trusted CAs, the oldest first; only those that may still sign have a key
	signing  *ca.CA
	rotation *rotation // nil while none is in progress
	proxies  map[string]*record
	warned   time.Time // when the last warning was logged that the CA expires soon
}

// trust holds the trusted roots of a mesh in all forms that are needed.
type trust struct {
	bundle  Bundle
	x509    *x509bundle.Bundle
	signing *ca.CA
}

// authorityFile is a meshAuthority in the storage. It is one file, so that each step of a rotation is one atomic write.
type authorityFile struct {
	Signing  string    `json:"signing"`
	CAs      []caFile  `json:"cas"`
	Rotation *rotation `json:"rotation,omitempty"`
}

type caFile struct {
	ID          string `json:"id"`
	Certificate string `json:"certificate"`
	// Key is removed once the CA no longer signs.
	Key string `json:"key,omitempty"`
}

func meshDirectory(meshName string) string { return path.Join("meshes", meshName) }

func authorityPath(meshName string) string { return path.Join(meshDirectory(meshName), "ca.json") }

// Ensure makes a CA for a mesh that has none, valid for life (0: mesh.DefaultCALife). A CA stays in the storage when its
// mesh is removed.
func (a *Authority) Ensure(meshName string, life time.Duration) error {
	_, err := a.open(meshName, func() (*ca.CA, error) { return a.newMeshCA(meshName, life) })
	return err
}

// open returns the authority of a mesh, from memory or the storage. If there is none it uses create to make one; if create
// is nil the error is ErrCANotFound, so that a mesh named in a foreign certificate does not get a CA.
func (a *Authority) open(meshName string, create func() (*ca.CA, error)) (*meshAuthority, error) {
	if err := checkMesh(meshName); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.meshes[meshName]; m != nil {
		return m, nil
	}
	m := &meshAuthority{mesh: meshName, proxies: map[string]*record{}}
	data, err := a.o.Secrets.Read(authorityPath(meshName))
	switch {
	case err == nil:
		err = m.decode(data, mesh.TrustDomain(meshName, a.o.TrustDomain))
	case errors.Is(err, fs.ErrNotExist) && create == nil:
		return nil, fmt.Errorf("mesh %q: %w", meshName, ErrCANotFound)
	case errors.Is(err, fs.ErrNotExist):
		err = a.create(m, create)
	}
	if err != nil {
		return nil, fmt.Errorf("open CA of mesh %q: %w", meshName, err)
	}
	if err := a.loadRecords(m); err != nil {
		return nil, fmt.Errorf("open CA of mesh %q: %w", meshName, err)
	}
	if err := m.publish(a.o.TrustDomain); err != nil {
		return nil, fmt.Errorf("open CA of mesh %q: %w", meshName, err)
	}
	err = ca.RegisterExpiry(a.o.Registerer, meshName, a.o.Now, func() *ca.CA { return m.trust.Load().signing })
	if err != nil {
		return nil, err
	}
	a.meshes[meshName] = m
	return m, nil
}

func (a *Authority) create(m *meshAuthority, create func() (*ca.CA, error)) error {
	c, err := create()
	if err != nil {
		return err
	}
	m.cas, m.signing = []*ca.CA{c}, c
	if err := a.writeAuthority(m.mesh, m.cas, m.signing, nil); err != nil {
		return err
	}
	a.o.Logger.Info("CA made", "mesh", m.mesh, "ca", c.ID, "expires", c.Cert.NotAfter)
	return nil
}

// newMeshCA makes a CA that may only sign for its mesh: verifiers check its name constraints.
func (a *Authority) newMeshCA(meshName string, life time.Duration) (*ca.CA, error) {
	if life <= 0 {
		life = mesh.DefaultCALife
	}
	domain := mesh.TrustDomain(meshName, a.o.TrustDomain)
	td, err := spiffeid.TrustDomainFromString(domain)
	if err != nil {
		return nil, fmt.Errorf("trust domain %q: %w", domain, err)
	}
	return ca.New(&x509.Certificate{
		Subject:                     ca.Subject("Sonde CA of mesh " + meshName),
		URIs:                        []*url.URL{td.ID().URL()},
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         []string{meshName + "." + mesh.ProxyDomain},
		PermittedURIDomains:         []string{domain},
	}, a.o.Now(), life)
}

// publish makes the current CAs those that handshakes verify against.
func (m *meshAuthority) publish(suffix string) error {
	td, err := spiffeid.TrustDomainFromString(mesh.TrustDomain(m.mesh, suffix))
	if err != nil {
		return fmt.Errorf("read trust domain: %w", err)
	}
	m.trust.Store(newTrust(td, m.cas, m.signing))
	return nil
}

func newTrust(td spiffeid.TrustDomain, cas []*ca.CA, signing *ca.CA) *trust {
	t := &trust{signing: signing, bundle: bundleOf(cas)}
	roots := make([]*x509.Certificate, len(cas))
	for i, c := range cas {
		roots[i] = c.Cert
	}
	t.x509 = x509bundle.FromX509Authorities(td, roots)
	return t
}

func bundleOf(cas []*ca.CA) Bundle {
	var b Bundle
	ids := make([]string, len(cas))
	for i, c := range cas {
		b.Roots = append(b.Roots, c.Cert.Raw)
		ids[i] = c.ID
	}
	slices.Sort(ids)
	var sorted [][]byte
	for _, id := range ids {
		sorted = append(sorted, []byte(id))
	}
	b.ID = ca.Fingerprint(sorted...)
	return b
}

// writeAuthority writes a state of a mesh's authority to the storage.
func (a *Authority) writeAuthority(meshName string, cas []*ca.CA, signing *ca.CA, r *rotation) error {
	f := authorityFile{Signing: signing.ID, Rotation: r}
	for _, c := range cas {
		certificate, key := c.Encode()
		f.CAs = append(f.CAs, caFile{ID: c.ID, Certificate: string(certificate), Key: string(key)})
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", authorityPath(meshName), err)
	}
	if err := a.o.Secrets.Write(authorityPath(meshName), data); err != nil {
		return fmt.Errorf("write %s: %w", authorityPath(meshName), err)
	}
	return nil
}

func (m *meshAuthority) decode(data []byte, domain string) error {
	name := authorityPath(m.mesh)
	var f authorityFile
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("read %s: it is not what was written", name)
	}
	for _, entry := range f.CAs {
		c, err := ca.Parse([]byte(entry.Certificate), []byte(entry.Key))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if len(c.Cert.URIs) != 1 || c.Cert.URIs[0].Host != domain {
			return fmt.Errorf("read %s: its CA is not of trust domain %q; was --trust-domain changed?", name, domain)
		}
		m.cas = append(m.cas, c)
		if c.ID == f.Signing {
			m.signing = c
		}
	}
	if m.signing == nil || !m.signing.CanSign() {
		return fmt.Errorf("read %s: the key of the CA that signs is missing", name)
	}
	m.rotation = f.Rotation
	return nil
}
