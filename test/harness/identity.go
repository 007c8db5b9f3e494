package harness

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

// IdentityFile is the file of Envoy's certificate and key, which the agent writes.
func (p *Proxy) IdentityFile() string { return filepath.Join(p.Dir(), "sds", "identity.json") }

// CAFile is the file of the CA certificates that Envoy trusts, which the agent writes.
func (p *Proxy) CAFile() string { return filepath.Join(p.Dir(), "sds", "ca.json") }

// sdsFile has the fields of IdentityFile and CAFile.
type sdsFile struct {
	Resources []struct {
		Certificate struct {
			Chain inline `json:"certificate_chain"`
			Key   inline `json:"private_key"`
		} `json:"tls_certificate"`
		Validation struct {
			CA inline `json:"trusted_ca"`
		} `json:"validation_context"`
	} `json:"resources"`
}

type inline struct {
	PEM string `json:"inline_string"`
}

func readSDS(path string) (*sdsFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var f sdsFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	if len(f.Resources) != 1 {
		return nil, fmt.Errorf("decode %s: it has %d resources, want 1", path, len(f.Resources))
	}
	return &f, nil
}

// Identity returns the proxy's current certificate and key.
func (p *Proxy) Identity() (tls.Certificate, error) {
	f, err := readSDS(p.IdentityFile())
	if err != nil {
		return tls.Certificate{}, err
	}
	c := f.Resources[0].Certificate
	return tls.X509KeyPair([]byte(c.Chain.PEM), []byte(c.Key.PEM))
}

// KeyPEM returns the proxy's current private key.
func (p *Proxy) KeyPEM() (string, error) {
	f, err := readSDS(p.IdentityFile())
	if err != nil {
		return "", err
	}
	return f.Resources[0].Certificate.Key.PEM, nil
}

// Trusted returns the CA certificates that the proxy trusts now.
func (p *Proxy) Trusted() ([]*x509.Certificate, error) {
	f, err := readSDS(p.CAFile())
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for rest := []byte(f.Resources[0].Validation.CA.PEM); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all, nil
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
}

// Processes returns the ids of the processes whose working directory is the proxy's: Envoys, even if their agent has
// ended.
func (p *Proxy) Processes() ([]int, error) { return below(p.Dir()) }
