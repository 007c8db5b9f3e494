// Package ca has certificate authorities, which sign certificates, and the forms in which keys are kept.
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

// How much earlier than its creation a certificate becomes valid, at most, so that peers whose clocks are behind accept it. That of a proxy is
// renewed after two thirds of the span from NotBefore to NotAfter, which has to be in the future at first: never more than a tenth of the validity.
const (
	maxBackdate   = 5 * time.Minute
	maxBackdateCA = 24 * time.Hour
)

// TimeFor returns the time at which to verify certificates that CAs of the control plane have signed: now, or when the last of them becomes valid.
// A signature shows that it was that late already, so a clock that is behind, and not the certificate, is wrong.
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
	key  *ecdsa.PrivateKey // nil if it is only trusted and cannot sign
}

// New makes a self-signed CA with a new key. The template says what the CA is for; New sets serial number, dates, key and usages.
func New(template *x509.Certificate, now time.Time, validity time.Duration) (*CA, error) {
	return NewOf(NewKey(), template, now, validity)
}

// NewOf is New with that key.
func NewOf(key *ecdsa.PrivateKey, template *x509.Certificate, now time.Time, validity time.Duration) (*CA, error) {
	template.SerialNumber = newSerial()
	// The CAs of one mesh have different subjects, so that issuers can be told apart while both are trusted.
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

// Parse returns the CA of a certificate and its key, both PEM. Without a key it cannot sign. Errors never contain the key.
func Parse(certificate, key []byte) (*CA, error) {
	block, _ := pem.Decode(certificate)
	if block == nil || block.Type != pemCertificate {
		return nil, errors.New("read certificate: it is not a PEM block \"" + pemCertificate + "\"")
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
		return nil, errors.New("read CA: the certificate is not one of a CA")
	}
	if key != nil && !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("read CA: certificate and key do not belong together")
	}
	return &CA{ID: Fingerprint(der), Cert: cert, key: key}, nil
}

// CanSign reports whether the CA has its key.
func (c *CA) CanSign() bool { return c.key != nil }

// WithoutKey returns the CA as one that is only trusted.
func (c *CA) WithoutKey() *CA { return &CA{ID: c.ID, Cert: c.Cert} }

// Encode returns certificate and key, PEM. The key is empty if the CA has none.
func (c *CA) Encode() (certificate, key []byte) {
	if c.key != nil {
		key = EncodeKey(c.key)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Cert.Raw}), key
}

// SignOwn is Sign for a certificate of the control plane itself. It is valid from when the CA is, so that a clock that was set back, here or at a
// client, does not make it invalid.
func (c *CA) SignOwn(template *x509.Certificate, public any, now time.Time, validity time.Duration) (*x509.Certificate, error) {
	template.NotBefore = c.Cert.NotBefore
	return c.sign(template, public, now, validity)
}

// Sign issues a leaf certificate, which never outlives the CA. It sets serial number and dates of the template.
func (c *CA) Sign(template *x509.Certificate, public any, now time.Time, validity time.Duration) (*x509.Certificate, error) {
	template.NotBefore = now.Add(-min(maxBackdate, validity/10))
	return c.sign(template, public, now, validity)
}

func (c *CA) sign(template *x509.Certificate, public any, now time.Time, validity time.Duration) (*x509.Certificate, error) {
	if !now.Before(c.Cert.NotAfter) {
		return nil, fmt.Errorf("sign certificate: the CA expired at %s; rotate it", c.Cert.NotAfter.UTC().Format(time.RFC3339))
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
	_, _ = rand.Read(b) // it never fails
	return new(big.Int).SetBytes(b)
}

// Subject returns the subject of a certificate of the control plane.
func Subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"Sonde"}, CommonName: name}
}
