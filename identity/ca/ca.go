// Package ca implements certificate authorities, which sign certificates, and the encoding of keys.
package ca

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// NotBefore is earlier than the creation of a certificate by this much, so that peers with slow clocks accept it, but
// by at most a tenth of the validity: agents renew after two thirds of the time from NotBefore to NotAfter, and that
// must be in the future.
const (
	maxBackdate   = 5 * time.Minute
	maxBackdateCA = 24 * time.Hour
)

// TimeFor returns the time at which to verify certificates signed by the control plane's CAs: now, or the latest
// NotBefore if that is later. A valid signature proves that this time has passed, so the local clock is wrong, not the
// certificate.
func TimeFor(now time.Time, certs ...*x509.Certificate) time.Time {
	for _, c := range certs {
		if now.Before(c.NotBefore) {
			now = c.NotBefore
		}
	}
	return now
}

// CA is a certificate authority. It is immutable.
type CA struct {
	// ID is the fingerprint of the certificate.
	ID   string
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey // nil if the CA is only trusted and cannot sign
}

// New creates a self-signed CA with a new key. The template has its names and constraints; New sets serial number,
// dates, key and usages.
func New(template *x509.Certificate, now time.Time, validity time.Duration) (*CA, error) {
	return NewOf(NewKey(), template, now, validity)
}

// NewOf is New with an existing key.
func NewOf(key *ecdsa.PrivateKey, template *x509.Certificate, now time.Time, validity time.Duration) (*CA, error) {
	template.SerialNumber = newSerial()
	// The CAs of one mesh get different subjects, so that verifiers can tell the issuer while two CAs are trusted.
	template.Subject.SerialNumber = template.SerialNumber.Text(16)
	template.NotBefore = now.Add(-min(maxBackdateCA, validity/10))
	template.NotAfter = now.Add(validity)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.BasicConstraintsValid = true
	template.IsCA = true
	template.MaxPathLenZero = true
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA: %w", err)
	}
	return parse(der, key)
}

// Parse returns the CA with a certificate and its key, both PEM. Without a key, the CA cannot sign. Errors never
// contain the key.
func Parse(certificate, key []byte) (*CA, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != pemCertificate {
		return nil, errors.New("read certificate: must be a PEM block \"" + pemCertificate + "\"")
	}
	if len(key) == 0 {
		return parse(block.Bytes, nil)
	}
	private, err := DecodeKey(key)
	if err != nil {
		return nil, err
	}
	return parse(block.Bytes, private)
}

func parse(der []byte, key *ecdsa.PrivateKey) (*CA, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	if !cert.IsCA {
		return nil, errors.New("read CA: the certificate is not a CA's")
	}
	if key != nil && !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("read CA: certificate and key do not match")
	}
	return &CA{ID: Fingerprint(der), Cert: cert, key: key}, nil
}

// CanSign reports whether the CA has its key.
func (c *CA) CanSign() bool { return c.key != nil }

// WithoutKey returns the CA without its key, which is only trusted.
func (c *CA) WithoutKey() *CA { return &CA{ID: c.ID, Cert: c.Cert} }

// Encode returns certificate and key, PEM. The key is empty if the CA has none.
func (c *CA) Encode() (certificate, key []byte) {
	if c.key != nil {
		key = EncodeKey(c.key)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Cert.Raw}), key
}

// SignOwn is Sign for a certificate of the control plane itself. The certificate is valid as soon as the CA is, so that
// a clock that was set back, here or at a client, does not make it invalid.
func (c *CA) SignOwn(
	template *x509.Certificate, public any, now time.Time, validity time.Duration,
) (*x509.Certificate, error) {
	template.NotBefore = c.Cert.NotBefore
	return c.sign(template, public, now, validity)
}

// Sign issues a leaf certificate, which never outlives the CA. It sets serial number and dates of the template.
func (c *CA) Sign(
	template *x509.Certificate, public any, now time.Time, validity time.Duration,
) (*x509.Certificate, error) {
	template.NotBefore = now.Add(-min(maxBackdate, validity/10))
	return c.sign(template, public, now, validity)
}

func (c *CA) sign(
	template *x509.Certificate, public any, now time.Time, validity time.Duration,
) (*x509.Certificate, error) {
	if !now.Before(c.Cert.NotAfter) {
		return nil, fmt.Errorf("sign certificate: the CA expired at %s; rotate it",
			c.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	template.SerialNumber = newSerial()
	template.NotAfter = now.Add(validity)
	if template.NotAfter.After(c.Cert.NotAfter) {
		template.NotAfter = c.Cert.NotAfter
	}
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, c.Cert, public, c.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read signed certificate: %w", err)
	}
	return cert, nil
}

// newSerial returns 128 random bits.
func newSerial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // rand.Read never fails
	return new(big.Int).SetBytes(b)
}

// Subject returns the subject of a certificate of the control plane.
func Subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"Sonde"}, CommonName: name}
}
