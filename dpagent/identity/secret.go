package identity

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// These types have only the fields of Envoy's DiscoveryResponse and Secret that the two files need. Envoy's protos
// would take more memory than the rest of the agent.
type (
	response struct {
		// Version is the epoch of the bundle, only in files of CAs.
		Version   string   `json:"version_info,omitempty"`
		Resources []secret `json:"resources"`
	}
	secret struct {
		Type              string             `json:"@type"`
		Name              string             `json:"name"`
		TLSCertificate    *tlsCertificate    `json:"tls_certificate,omitempty"`
		ValidationContext *validationContext `json:"validation_context,omitempty"`
	}
	tlsCertificate struct {
		CertificateChain inline `json:"certificate_chain"`
		PrivateKey       inline `json:"private_key"`
	}
	validationContext struct {
		TrustedCA inline `json:"trusted_ca"`
	}
	inline struct {
		String string `json:"inline_string"`
	}
)

const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

func identitySecret(leaf *tls.Certificate) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	var chain strings.Builder
	for _, c := range leaf.Certificate {
		chain.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c}))
	}
	data, err := json.Marshal(response{Resources: []secret{{
		Type: secretType, Name: mesh.SecretIdentity,
		TLSCertificate: &tlsCertificate{
			CertificateChain: inline{chain.String()},
			PrivateKey:       inline{string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))},
		},
	}}})
	if err != nil {
		return nil, fmt.Errorf("encode identity: %w", err)
	}
	// Envoy logs a file that it cannot parse, including the key, so check that it can.
	var back response
	if err := json.Unmarshal(data, &back); err != nil {
		return nil, fmt.Errorf("read identity back: %w", err)
	}
	written := back.Resources[0].TLSCertificate
	if _, err := tls.X509KeyPair([]byte(written.CertificateChain.String), []byte(written.PrivateKey.String)); err != nil {
		return nil, fmt.Errorf("read identity back: %w", err)
	}
	return data, nil
}

// pemOf returns certificates as PEM.
func pemOf(all []*x509.Certificate) string {
	var text strings.Builder
	for _, c := range all {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))
	}
	return text.String()
}

func bundleSecret(name string, b bundle) ([]byte, error) {
	r := response{Resources: []secret{{
		Type: secretType, Name: name,
		ValidationContext: &validationContext{TrustedCA: inline{pemOf(b.roots)}},
	}}}
	if b.epoch != 0 {
		r.Version = strconv.FormatInt(b.epoch, 10)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode bundle: %w", err)
	}
	return data, nil
}
