package featuretest

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/url"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// Forge returns the configuration of a client that has the key of the CA of mesh default. With the key, the client has
// signed a certificate for a proxy with these SPIFFE IDs.
func (f *Feature) Forge(proxy string, spiffeIDs ...string) (*tls.Config, error) {
	signing, err := f.signing()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		DNSNames: []string{mesh.ProxyDNSName(mesh.DefaultMesh, proxy)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, id := range spiffeIDs {
		uri, err := url.Parse(id)
		if err != nil {
			return nil, err
		}
		template.URIs = append(template.URIs, uri)
	}
	key := ca.NewKey()
	leaf, err := signing.Sign(template, key.Public(), time.Now(), time.Hour)
	if err != nil {
		return nil, err
	}
	config, err := sondecp.TrustOnly(f.plane.serving)
	if err != nil {
		return nil, err
	}
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}}
	return config, nil
}

// signing returns the CA that signs the certificates of mesh default.
func (f *Feature) signing() (*ca.CA, error) {
	const file = "meshes/" + mesh.DefaultMesh + "/ca.json"
	data, err := f.kept.Read(file)
	if err != nil {
		return nil, err
	}
	var kept struct {
		Signing string `json:"signing"`
		CAs     []struct {
			ID          string `json:"id"`
			Certificate string `json:"certificate"`
			Key         string `json:"key"`
		} `json:"cas"`
	}
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, err
	}
	for _, one := range kept.CAs {
		if one.ID == kept.Signing {
			return ca.Parse([]byte(one.Certificate), []byte(one.Key))
		}
	}
	return nil, fmt.Errorf("%s has no signing CA", file)
}
