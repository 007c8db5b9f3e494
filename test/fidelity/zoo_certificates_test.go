package fidelity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// signed is a certificate of its own for a key.
func signed(key crypto.Signer, err error) []tls.Certificate {
	if err != nil {
		panic(err) // no randomness
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err) // as above
	}
	return []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
}

func signedRSA(bits int) []tls.Certificate { return signed(rsa.GenerateKey(rand.Reader, bits)) }

// keys are HTTPS with certificates of each kind, and what they are agreed upon with.
func keys() (z zoo) {
	add := func(name string, want kubelet.Verdict, config *tls.Config, answer func(*exchange)) {
		n := len(z)
		z.add(scenario{
			name: "TLS " + name, want: []kubelet.Verdict{want}, process: n%5 == 0,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe") }),
			sites:      func(p place) []site { return []site{{port: p.app, tls: config, answer: answer}} },
		})
	}
	valid := certificates().valid
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	broken := []tls.Certificate{{Certificate: [][]byte{[]byte("no certificate")}, PrivateKey: valid[0].PrivateKey}}
	long := []tls.Certificate{{Certificate: slices.Repeat(valid[0].Certificate, 31), PrivateKey: valid[0].PrivateKey}}
	add("RSA of 1024 bits", success, &tls.Config{Certificates: signedRSA(1024)}, ok)
	add("RSA of 2048 bits", success, &tls.Config{Certificates: signedRSA(2048)}, ok)
	add("RSA with 1.2", success, &tls.Config{Certificates: signedRSA(2048), MaxVersion: tls.VersionTLS12}, ok)
	add("RSA without a key exchange", failure, &tls.Config{
		Certificates: signedRSA(2048), MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256},
	}, ok)
	add("P-521", success, &tls.Config{Certificates: signed(ecdsa.GenerateKey(elliptic.P521(), rand.Reader))}, ok)
	add("Ed25519", success, &tls.Config{Certificates: signed(ed, err)}, ok)
	add("on one curve", success, &tls.Config{Certificates: valid, CurvePreferences: []tls.CurveID{tls.CurveP521}}, ok)
	add("a certificate that is none", failure, &tls.Config{Certificates: broken}, ok)
	add("31 certificates", success, &tls.Config{Certificates: long}, ok)
	add("body until the end", success, &tls.Config{Certificates: valid}, func(x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n\r\nok")
		x.close()
	})
	add("body until the end, which is not said", success, &tls.Config{Certificates: valid}, func(x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n\r\nok")
		x.drain()
	})
	add("a whole body, and an end that is not said", success, &tls.Config{Certificates: valid}, func(x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		x.drain()
	})
	return z
}
