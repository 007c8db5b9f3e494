package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// memory is a Storage.
type memory map[string][]byte

func (m memory) Read(_ context.Context, name string) ([]byte, string, error) {
	data, ok := m[name]
	if !ok {
		return nil, "", fs.ErrNotExist
	}
	return data, "1", nil
}

func (m memory) Create(_ context.Context, name string, data []byte) (string, error) {
	if _, ok := m[name]; ok {
		return "", fs.ErrExist
	}
	m[name] = data
	return "1", nil
}

func open(t *testing.T, o Options) *Certificate {
	t.Helper()
	c, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificate(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := open(t, Options{Storage: memory{}, Now: func() time.Time { return now }})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA()) {
		t.Fatal("CA() is no PEM")
	}
	config := c.TLS()
	serve := func() *x509.Certificate {
		c, err := config.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf
	}
	first := serve()
	for _, name := range []string{mesh.ServingName, "localhost", "127.0.0.1", "::1"} {
		if _, err := first.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if config.MinVersion != tls.VersionTLS13 {
		t.Error("TLS before 1.3 is spoken")
	}
	now = now.Add(certificateValidity*2/3 - time.Second)
	if serve().SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("renewed before two thirds of its validity are over")
	}
	now = now.Add(time.Second)
	renewed := serve()
	if renewed.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("not renewed after two thirds of its validity")
	}
	if _, err := renewed.Verify(x509.VerifyOptions{Roots: roots, DNSName: mesh.ServingName, CurrentTime: now}); err != nil {
		t.Error(err)
	}
}

func TestCASurvivesRestart(t *testing.T) {
	storage := memory{}
	first := open(t, Options{Storage: storage})
	if restarted := open(t, Options{Storage: storage}); string(restarted.CA()) != string(first.CA()) {
		t.Error("the CA is another one after the restart")
	}
}

func TestBrokenStateIsNamed(t *testing.T) {
	other := memory{}
	open(t, Options{Storage: other})
	tests := map[string]struct {
		bend func(m memory)
		want string
	}{
		"CA without its key": {func(m memory) { delete(m, caKey) }, caKey},
		"CA that is no PEM":  {func(m memory) { m[caFile] = []byte("x") }, caFile},
		"key that is no PEM": {func(m memory) { m[caKey] = []byte("secret") }, caKey},
		"key that is empty":  {func(m memory) { m[caKey] = nil }, caKey},
		"key of another CA":  {func(m memory) { m[caKey] = other[caKey] }, "do not belong together"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := memory{}
			open(t, Options{Storage: storage})
			tc.bend(storage)
			_, err := Open(t.Context(), Options{Storage: storage})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error = %v, want one that says %q, without the content of the file", err, tc.want)
			}
		})
	}
}

func TestExpiryOfTheCAIsMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	open(t, Options{Storage: memory{}, Registerer: registry})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 1 || families[0].GetName() != "sonde_identity_ca_expiry_seconds" ||
		families[0].GetMetric()[0].GetLabel()[0].GetValue() != "" || families[0].GetMetric()[0].GetGauge().GetValue() <= 0 {
		t.Errorf("metrics = %v, want the expiry of the CA", families)
	}
}
