package cases

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"sync"
	"time"
)

// identities are certificates that no trusted CA has signed.
type identities struct {
	valid, expired, future, other []tls.Certificate
	authority                     *x509.CertPool
}

var certificates = sync.OnceValue(func() identities {
	year := 365 * 24 * time.Hour
	now := time.Now()
	issue := func(name string, from, to time.Time) []tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		return selfSigned(key, err, &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true,
		})
	}
	all := identities{
		valid:     issue("app.example", now.Add(-time.Hour), now.Add(year)),
		expired:   issue("app.example", now.Add(-year), now.Add(-time.Hour)),
		future:    issue("app.example", now.Add(year), now.Add(2*year)),
		other:     issue("elsewhere.example", now.Add(-time.Hour), now.Add(year)),
		authority: x509.NewCertPool(),
	}
	certificate, err := x509.ParseCertificate(all.valid[0].Certificate[0])
	if err != nil {
		panic(err) // the certificate was created above
	}
	all.authority.AddCert(certificate)
	return all
})

// selfSigned returns a self-signed certificate for a key that was just created.
func selfSigned(key crypto.Signer, err error, template *x509.Certificate) []tls.Certificate {
	if err != nil {
		panic(err) // no random numbers
	}
	template.SerialNumber = big.NewInt(1)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err) // like above
	}
	return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
}

func signed(key crypto.Signer, err error) []tls.Certificate {
	return selfSigned(key, err, &x509.Certificate{})
}

// signedRSA creates the certificate when a server needs it, since that is slow.
func signedRSA(bits int) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	made := sync.OnceValue(func() []tls.Certificate { return signed(rsa.GenerateKey(rand.Reader, bits)) })
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &made()[0], nil }
}
