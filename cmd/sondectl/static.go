package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// writeStatic writes the complete configuration of one proxy as a static configuration.
func writeStatic(ctx context.Context, out *printer.Output, view *meshview.View, id mesh.ID, trustDomain string) error {
	m, p := view.Proxy(id)
	options := generator.StaticOptions{Mesh: m, Proxy: p, TrustDomain: trustDomain}
	fmt.Fprintf(out, "# Static Envoy configuration of %s.\n", id)
	if m.Spec.Backend() != nil {
		if err := addThrowAwaySecrets(ctx, &options); err != nil {
			return fmt.Errorf("create throw-away certificate of %s: %w", id, err)
		}
		out.WriteString("# THROW-AWAY SECRETS: static_resources.secrets is from a CA that exists only for this output and is\n" +
			"# not stored. No proxy of a mesh trusts it.\n")
	}
	body, err := envoyJSON(generator.Static(options))
	if err != nil {
		return fmt.Errorf("encode configuration of %s: %w", id, err)
	}
	return printer.WriteYAML(out, json.RawMessage(body))
}

// addThrowAwaySecrets adds a certificate from a CA in memory, issued by the same code as real ones.
func addThrowAwaySecrets(ctx context.Context, o *generator.StaticOptions) error {
	dataplane := o.Proxy.Dataplane
	authority, err := identity.New(ctx, identity.Options{
		Secrets: memory{}, TrustDomain: o.TrustDomain, Proxies: identity.NoProxies,
	})
	if err != nil {
		return err
	}
	if err := authority.Ensure(ctx, dataplane.Mesh, o.Mesh.Spec.Backend().CAValidity()); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	issued, err := authority.Issue(ctx, identity.Request{
		Subject: identity.SubjectOf(dataplane), CSR: csr, Validity: o.Mesh.Spec.Backend().CertValidity(),
	})
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	o.Certificate = encodePEM("CERTIFICATE", issued.Chain...)
	o.CA = encodePEM("CERTIFICATE", issued.Bundle.Roots...)
	o.Key = encodePEM("PRIVATE KEY", der)
	return nil
}

func encodePEM(kind string, blocks ...[]byte) []byte {
	var out bytes.Buffer
	for _, block := range blocks {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: block}))
	}
	return out.Bytes()
}

// memory stores an authority in memory.
type memory map[string][]byte

// memoryVersion is the version of every secret in memory.
const memoryVersion = "1"

// Read implements secret.Store.
func (m memory) Read(_ context.Context, name string) ([]byte, string, error) {
	data, ok := m[name]
	if !ok {
		return nil, "", fs.ErrNotExist
	}
	return data, memoryVersion, nil
}

// Create implements secret.Store.
func (m memory) Create(_ context.Context, name string, data []byte) (string, error) {
	m[name] = data
	return memoryVersion, nil
}

// Update implements identity.Secrets.
func (m memory) Update(_ context.Context, name string, data []byte, _ string) (string, error) {
	m[name] = data
	return memoryVersion, nil
}

// List implements identity.Secrets. It returns nothing, since memory is empty at the start.
func (m memory) List(context.Context, string) ([]string, error) { return nil, nil }

// Watch implements identity.Secrets.
func (m memory) Watch(context.Context, func(string)) error { return nil }
