// Package sondecp creates state directories of a control plane, and identities of proxies without calling
// it.
package sondecp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/identity/token"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// memory is a state directory in memory. Writing the certificates of thousands of proxies to disk, with an fsync
// each, would take most of the benchmark's time.
type memory struct{ secrettest.Records }

func newMemory() memory { return memory{secrettest.Records{Memory: &secrettest.Memory{}}} }

// background is the context of all calls on memory, which never block.
var background = context.Background()

// save writes the files below a directory, as in the state directory of a control plane.
func (m memory) save(directory string) error {
	for name, data := range m.All() {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func load(directory string) (memory, error) {
	m := newMemory()
	root := os.DirFS(directory)
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(root, path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the running control plane has renamed a temporary file
		}
		m.Put(path, data)
		return err
	})
	return m, err
}

// Identity is a copy of a control plane's state directory. Its changes stay in memory.
type Identity struct {
	*identity.Authority
	Serving     *serving.Certificate
	Tokens      *token.Issuer
	Credentials *mtls.Credentials
}

func (m memory) open() (*Identity, error) {
	var id Identity
	var err error
	if id.Authority, err = identity.New(background, identity.Options{Secrets: m.Memory, Records: m}); err != nil {
		return nil, err
	}
	if id.Serving, err = serving.Open(background, serving.Options{Storage: m.Memory}); err != nil {
		return nil, err
	}
	if id.Tokens, err = token.Open(background, token.Options{Storage: m.Memory}); err != nil {
		return nil, err
	}
	id.Credentials, err = mtls.New(mtls.Options{TLS: id.Serving.TLS(), Verifier: id.Authority})
	return &id, err
}

// MakeState creates a state directory with the CAs of these meshes.
func MakeState(directory string, meshes ...string) error {
	m := newMemory()
	id, err := m.open()
	if err != nil {
		return err
	}
	for _, name := range meshes {
		if err := id.Ensure(background, name, 0); err != nil {
			return err
		}
	}
	return m.save(directory)
}

// Join records in a state directory that these proxies have joined with these workloads: otherwise their endpoints
// would not be ready.
func Join(directory string, workloads map[mesh.ID]string) error {
	m, err := load(directory)
	if err != nil {
		return err
	}
	a, err := identity.New(background, identity.Options{Secrets: m.Memory, Records: m})
	if err != nil {
		return err
	}
	for proxy, workload := range workloads {
		meshName, dataplane := mesh.SplitID(proxy)
		if _, err := Issue(a, identity.Subject{
			Mesh: meshName, Dataplane: dataplane, Path: mesh.WorkloadPath(workload),
		}); err != nil {
			return err
		}
	}
	return m.save(directory)
}

// OpenIdentity opens a state directory.
func OpenIdentity(directory string) (*Identity, error) {
	m, err := load(directory)
	if err != nil {
		return nil, err
	}
	return m.open()
}

// Issue creates a proxy's identity, as the control plane does when its agent joins.
func Issue(a *identity.Authority, proxy identity.Subject) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	issued, err := a.Issue(background, identity.Request{Subject: proxy, CSR: csr, Validity: 24 * time.Hour})
	return tls.Certificate{Certificate: issued.Chain, PrivateKey: key}, err
}

// ClientTLS returns a proxy's TLS configuration, with a new certificate.
func (id *Identity) ClientTLS(proxy identity.Subject) (*tls.Config, error) {
	certificate, err := Issue(id.Authority, proxy)
	if err != nil {
		return nil, err
	}
	config, err := TrustOnly(id.Serving)
	if err == nil {
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, err
}

// TrustOnly returns the TLS configuration of a client of a control plane, without a certificate.
func TrustOnly(s *serving.Certificate) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.CA()) {
		return nil, errors.New("the serving CA is no certificate")
	}
	return &tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
	}, nil
}
