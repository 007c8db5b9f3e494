package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// maxBackdate is how much earlier than its creation a certificate becomes valid, so that peers whose clocks are behind
// accept it. For a short life it is at most a tenth of that, so that the time of renewal, after two thirds of the span from
// NotBefore to NotAfter, is always in the future at first.
const maxBackdate = 5 * time.Minute

func backdate(life time.Duration) time.Duration { return min(maxBackdate, life/10) }

// ca is a certificate authority. Without a key it is only trusted and cannot sign.
type ca struct {
	id   string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newCA makes a self-signed CA. The template says what the CA is for; newCA sets serial, dates, key and usages.
func newCA(template *x509.Certificate, now time.Time, life time.Duration) (*ca, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of CA: %w", err)
	}
	if template.SerialNumber, err = newSerial(); err != nil {
		return nil, err
	}
	// The CAs of one mesh have different subjects, so that issuers can be told apart while both are trusted.
	template.Subject.SerialNumber = template.SerialNumber.Text(16)
	template.NotBefore = now.Add(-backdate(life))
	template.NotAfter = now.Add(life)
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	template.BasicConstraintsValid = true
	template.IsCA = true
	template.MaxPathLenZero = true
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA: %w", err)
	}
	return makeCA(der, key)
}

// makeCA makes a ca from a certificate and its key; the key may be nil.
func makeCA(der []byte, key *ecdsa.PrivateKey) (*ca, error) {
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
	return &ca{id: hash(der), cert: cert, key: key}, nil
}

// sign issues a leaf certificate, which never outlives the CA.
func (c *ca) sign(template *x509.Certificate, public any, now time.Time, life time.Duration) (*x509.Certificate, error) {
	if !now.Before(c.cert.NotAfter) {
		return nil, fmt.Errorf("sign certificate: the CA expired at %s; rotate it", c.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-backdate(life))
	template.NotAfter = now.Add(life)
	if template.NotAfter.After(c.cert.NotAfter) {
		template.NotAfter = c.cert.NotAfter
	}
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, public, c.key)
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
func newSerial() (*big.Int, error) {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return new(big.Int).SetBytes(b[:]), nil
}

// hash returns the first 128 bits of the SHA-256 of data, in hexadecimal.
func hash(data ...[]byte) string {
	h := sha256.New()
	for _, d := range data {
		h.Write(d)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"Sonde"}, CommonName: name}
}

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

// decodeKey decodes a key. Its errors never contain the input.
func decodeKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("read key: it is not a PEM block \"" + pemKey + "\"")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("read key: it is not PKCS #8")
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("read key: it is not an ECDSA key on P-256")
	}
	return ec, nil
}

func decodeCertificate(data []byte) ([]byte, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemCertificate {
		return nil, errors.New("read certificate: it is not a PEM block \"" + pemCertificate + "\"")
	}
	return block.Bytes, nil
}
