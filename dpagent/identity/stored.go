package identity

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Stored returns the certificate and the key that an agent of this proxy has left on disk, for a start without a token. It
// does not put them in place. The error wraps fs.ErrNotExist if there are none, else it says why they cannot be used: damaged,
// expired, of another proxy, or not of the CA beside them. Errors never contain the key.
func (i *Identity) Stored() (*tls.Certificate, error) {
	leaf, trusted, err := i.stored()
	if leaf != nil && i.isOwn(leaf) { // one of another mesh has epochs of its own
		i.mu.Lock()
		defer i.mu.Unlock()
		i.epoch = max(i.epoch, trusted.epoch)
	}
	return leaf, err
}

// Resume puts what Stored returns in place, for an agent that goes on where another one has died: Envoy has it already.
func (i *Identity) Resume() error {
	leaf, trusted, err := i.stored()
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leaf, i.bundle, i.epoch = leaf, trusted, trusted.epoch
	return nil
}

func (i *Identity) stored() (*tls.Certificate, bundle, error) {
	own, err := i.readSecret(mesh.FileIdentity)
	if err != nil {
		return nil, bundle{}, err
	}
	trusted, err := i.readSecret(mesh.FileCA)
	if err != nil {
		return nil, bundle{}, err
	}
	tlsCertificate, validation := own.Resources[0].TLSCertificate, trusted.Resources[0].ValidationContext
	if tlsCertificate == nil || validation == nil {
		return nil, bundle{}, fmt.Errorf("read %s and %s: certificate or CA is missing", mesh.FileIdentity, mesh.FileCA)
	}
	leaf, err := tls.X509KeyPair([]byte(tlsCertificate.CertificateChain.String), []byte(tlsCertificate.PrivateKey.String))
	if err != nil {
		return nil, bundle{}, fmt.Errorf("read %s: %w", mesh.FileIdentity, err)
	}
	var roots agentv1.Bundle
	if trusted.Version != "" { // an earlier release wrote none
		if roots.Epoch, err = strconv.ParseInt(trusted.Version, 10, 64); err != nil || roots.GetEpoch() <= 0 {
			return nil, bundle{}, fmt.Errorf("read %s: version_info: %q: must be a positive number", mesh.FileCA, trusted.Version)
		}
	}
	for rest := []byte(validation.TrustedCA.String); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		roots.Roots = append(roots.Roots, block.Bytes)
	}
	b, err := parseBundle(&roots)
	if err != nil {
		return nil, bundle{}, fmt.Errorf("read %s: %w", mesh.FileCA, err)
	}
	return &leaf, b, i.check(&leaf, b)
}

// readSecret reads one of the two files, as identitySecret and bundleSecret write them.
func (i *Identity) readSecret(name string) (response, error) {
	data, err := i.files.Read(name)
	if err != nil {
		return response{}, err
	}
	var r response
	if json.Unmarshal(data, &r) != nil { // its error may quote the file
		return response{}, fmt.Errorf("read %s: it is not what this agent writes", name)
	}
	if len(r.Resources) != 1 {
		return response{}, errors.New("read " + name + ": it has not one secret")
	}
	return r, nil
}
