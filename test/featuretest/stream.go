package featuretest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/envoysim"
)

// window of a stream and of a connection. It is fixed, so that the server notices a client that does not read.
const window = 64 << 10

// Address is where ADS is served.
func (f *Feature) Address() string { return f.plane.address }

// TLS returns what a proxy connects with: the certificate of owner, or none if owner is "".
func (f *Feature) TLS(owner mesh.ID) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(f.plane.serving.CA()) {
		return nil, errors.New("the serving CA is no certificate")
	}
	config := &tls.Config{RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if owner != "" {
		certificate, err := f.certificate(owner)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}

// dial connects with the certificate of owner, or without one if owner is "".
func (f *Feature) dial(owner mesh.ID) (*grpc.ClientConn, error) {
	config, err := f.TLS(owner)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+f.plane.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window), grpc.WithNoProxy())
}

// certificate issues a certificate as for an agent that joins.
func (f *Feature) certificate(owner mesh.ID) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	meshName, dataplane := mesh.SplitID(owner)
	issued, err := f.plane.authority.Issue(identity.Request{
		Subject: identity.Subject{Mesh: meshName, Dataplane: dataplane, Workload: "web"}, CSR: csr, Validity: time.Hour,
	})
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of %s: %w", owner, err)
	}
	return tls.Certificate{Certificate: issued.Chain, PrivateKey: key}, nil
}

// Open opens a stream with the certificate of owner, or without one if owner is empty. What is sent is up to the test. It
// ends when no test would wait longer.
func (f *Feature) Open(owner mesh.ID, p envoysim.Protocol) envoysim.Wire {
	f.t.Helper()
	conn, err := f.dial(owner)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	f.t.Cleanup(func() {
		cancel()
		_ = conn.Close() // the test is over
	})
	w, err := envoysim.OpenWire(ctx, p, conn)
	if err != nil {
		f.t.Fatalf("open stream with the certificate of %q: %v", owner, err)
	}
	return w
}
