package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"testing"
	"time"
)

func FuzzDecodeKept(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1e10, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		f.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		f.Fatal(err)
	}
	files := memory{}
	told := toldCAs{bundle: bundle{id: "x", epoch: 5, roots: []*x509.Certificate{root}}, replaced: []string{fingerprint(root)}}
	if err := told.keep(files, "cp:5678"); err != nil {
		f.Fatal(err)
	}
	f.Add(files[fileKept])
	f.Add([]byte(`{"epoch":1,"trusted":"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----","replaced":[""]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		told, by, err := decodeKept(data)
		if err != nil {
			return
		}
		again := memory{}
		if err := told.keep(again, by); err != nil {
			t.Fatal(err)
		}
		back, _, err := decodeKept(again[fileKept])
		if err != nil || back.epoch != told.epoch || len(back.roots) != len(told.roots) || !bytes.Equal(back.roots[0].Raw, told.roots[0].Raw) {
			t.Fatalf("the encoded result cannot be decoded again: %v", err)
		}
	})
}

// memory implements Files in memory.
type memory map[string][]byte

func (m memory) Read(name string) ([]byte, error) { return m[name], nil }

func (m memory) Write(name string, data []byte) error {
	m[name] = data
	return nil
}
