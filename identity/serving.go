package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// The serving CA in the state directory, and lives of certificates. Agents and sondectl get the certificate of the CA by
// --ca-cert-file.
const (
	servingCAFile   = "serving-ca.crt"
	servingCAKey    = "serving-ca.key"
	servingCALife   = 10 * 365 * 24 * time.Hour
	servingCertLife = 30 * 24 * time.Hour
)

// serving holds the control plane's serving certificate. Its key is only in memory.
type serving struct {
	ca  *ca
	now func() time.Time

	mu      sync.Mutex
	current *tls.Certificate
	renew   time.Time
}

func openServing(storage Storage, now func() time.Time) (*serving, error) {
	s := &serving{now: now}
	var err error
	if s.ca, err = openServingCA(storage, now()); err != nil {
		return nil, err
	}
	if _, err := s.certificate(); err != nil {
		return nil, err
	}
	return s, nil
}

func openServingCA(storage Storage, now time.Time) (*ca, error) {
	certPEM, err := storage.Read(servingCAFile)
	if missing(err) {
		return newServingCA(storage, now)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", servingCAFile, err)
	}
	der, err := decodeCertificate(certPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", servingCAFile, err)
	}
	keyPEM, err := storage.Read(servingCAKey)
	if err != nil {
		return nil, fmt.Errorf("read %s (to make both anew, remove %s): %w", servingCAKey, servingCAFile, err)
	}
	key, err := decodeKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", servingCAKey, err)
	}
	c, err := makeCA(der, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", servingCAFile, servingCAKey, err)
	}
	return c, nil
}

// newServingCA writes the key before the certificate, so that there is never a certificate without its key.
func newServingCA(storage Storage, now time.Time) (*ca, error) {
	c, err := newCA(&x509.Certificate{Subject: subject("Sonde control plane CA")}, now, servingCALife)
	if err != nil {
		return nil, err
	}
	key, err := encodeKey(c.key)
	if err != nil {
		return nil, err
	}
	if err := storage.Write(servingCAKey, key); err != nil {
		return nil, fmt.Errorf("write %s: %w", servingCAKey, err)
	}
	if err := storage.Write(servingCAFile, encodeCertificate(c.cert.Raw)); err != nil {
		return nil, fmt.Errorf("write %s: %w", servingCAFile, err)
	}
	return c, nil
}

// certificate returns the serving certificate, and makes a new one after two thirds of the life of the old one.
func (s *serving) certificate() (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if s.current != nil && now.Before(s.renew) {
		return s.current, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of serving certificate: %w", err)
	}
	leaf, err := s.ca.sign(&x509.Certificate{
		Subject:     subject(mesh.ServingName),
		DNSNames:    []string{mesh.ServingName, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), now, servingCertLife)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	s.current = &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	s.renew = now.Add(leaf.NotAfter.Sub(now) * 2 / 3)
	return s.current, nil
}

// ServingCA returns the CA certificate against which clients verify the control plane, PEM.
func (a *Authority) ServingCA() []byte { return encodeCertificate(a.serving.ca.cert.Raw) }

// ServingTLS returns the configuration for the admin API: with the serving certificate, without client certificates.
func (a *Authority) ServingTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serving.certificate()
		},
	}
}
