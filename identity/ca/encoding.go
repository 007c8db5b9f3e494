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

// NewKey creates a key of the control plane's only type: ECDSA on P-256.
func NewKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err) // the curve is supported, and the source of randomness never fails
	}
	return key
}

// EncodeKey returns a key as PEM.
func EncodeKey(key *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(err) // every key from NewKey and DecodeKey can be encoded
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der})
}

// DecodeKey is the reverse of EncodeKey. Its errors never contain the input.
func DecodeKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("read key: must be a PEM block \"" + pemKey + "\"")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("read key: must be PKCS #8")
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("read key: must be an ECDSA key on P-256")
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
