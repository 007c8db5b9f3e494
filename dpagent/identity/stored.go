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

// Stored returns the certificate and key that an earlier agent of this proxy left on disk, for a start without a token.
// It does not install them. The error wraps fs.ErrNotExist if they are missing. Otherwise it tells why they are
// unusable: damaged, expired, issued for another proxy, or not signed by the stored CA. Errors never contain the key.
func (i *Identity) Stored() (*tls.Certificate, error) {
	leaf, trusted, err := i.stored()
	if leaf != nil && i.isOwn(leaf) { // epochs of another mesh do not matter
		i.mu.Lock()
		defer i.mu.Unlock()
		i.epoch = max(i.epoch, trusted.epoch)
	}
	return leaf, err
}

// Resume installs the result of Stored, for an agent that resumes after another one, whose Envoy already uses it.
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
	if trusted.Version != "" { // an earlier release wrote no version
		if roots.Epoch, err = strconv.ParseInt(trusted.Version, 10, 64); err != nil || roots.GetEpoch() <= 0 {
			return nil, bundle{}, fmt.Errorf("read %s: version_info: %q: must be a positive number",
				mesh.FileCA, trusted.Version)
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

// readSecret reads a file that identitySecret or bundleSecret has written.
func (i *Identity) readSecret(name string) (response, error) {
	data, err := i.files.Read(name)
	if err != nil {
		return response{}, err
	}
	var r response
	if json.Unmarshal(data, &r) != nil { // do not return the error, which may quote the file
		return response{}, fmt.Errorf("read %s: not written by this agent", name)
	}
	if len(r.Resources) != 1 {
		return response{}, errors.New("read " + name + ": must have exactly one secret")
	}
	return r, nil
}
