package identity

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Stored returns the certificate and the key that an agent of this proxy has left on disk, for a start without a token. It
// does not put them in place. The error wraps fs.ErrNotExist if there are none, else it says why they cannot be used: damaged,
// expired, of another proxy, or not of the CA beside them. Errors never contain the key.
func (i *Identity) Stored() (*tls.Certificate, error) {
	own, err := i.readSecret(mesh.FileIdentity)
	if err != nil {
		return nil, err
	}
	trusted, err := i.readSecret(mesh.FileCA)
	if err != nil {
		return nil, err
	}
	if own.TLSCertificate == nil || trusted.ValidationContext == nil {
		return nil, fmt.Errorf("read %s and %s: certificate or CA is missing", mesh.FileIdentity, mesh.FileCA)
	}
	leaf, err := tls.X509KeyPair([]byte(own.TLSCertificate.CertificateChain.String), []byte(own.TLSCertificate.PrivateKey.String))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", mesh.FileIdentity, err)
	}
	var roots agentv1.Bundle
	for rest := []byte(trusted.ValidationContext.TrustedCA.String); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		roots.Roots = append(roots.Roots, block.Bytes)
	}
	b, err := parseBundle(&roots)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", mesh.FileCA, err)
	}
	return &leaf, i.check(&leaf, b)
}

// readSecret reads one of the two files, as identitySecret and bundleSecret write them.
func (i *Identity) readSecret(name string) (secret, error) {
	data, err := i.files.Read(name)
	if err != nil {
		return secret{}, err
	}
	var r response
	if json.Unmarshal(data, &r) != nil { // its error may quote the file
		return secret{}, fmt.Errorf("read %s: it is not what this agent writes", name)
	}
	if len(r.Resources) != 1 {
		return secret{}, errors.New("read " + name + ": it has not one secret")
	}
	return r.Resources[0], nil
}
