package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
)

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// NewKey makes a key as all keys of the control plane are: ECDSA on P-256.
func NewKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // neither the curve nor the source of randomness can fail
	}
	return key
}

// EncodeKey returns a key as PEM.
func EncodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err) // it has every key that NewKey makes and DecodeKey accepts
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
}

// DecodeKey is the reverse of EncodeKey. Its errors never contain the input.
func DecodeKey(data []byte) (*ecdsa.PrivateKey, error) {
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

// Fingerprint returns the first 128 bits of the SHA-256 of data, in hexadecimal.
func Fingerprint(data ...[]byte) string {
	h := sha256.New()
	for _, d := range data {
		h.Write(d)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
