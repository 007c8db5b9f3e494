package identity

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestServingCertificate(t *testing.T) {
	clock := newClock()
	a, err := New(Options{Storage: newMemory(), Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.ServingCA()) {
		t.Fatal("ServingCA is no PEM")
	}
	config := a.ServingTLS()
	serve := func() *x509.Certificate {
		c, err := config.GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf
	}
	first := serve()
	for _, name := range []string{mesh.ServingName, "localhost", "127.0.0.1", "::1"} {
		if _, err := first.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: clock.Now()}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if config.MinVersion != tls.VersionTLS13 {
		t.Error("TLS before 1.3 is spoken")
	}
	clock.Add(servingCertLife * 2 / 3)
	clock.Add(-time.Second)
	if serve().SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("renewed before two thirds of its life are over")
	}
	clock.Add(time.Second)
	renewed := serve()
	if renewed.SerialNumber.Cmp(first.SerialNumber) == 0 {
		t.Error("not renewed after two thirds of its life")
	}
	if _, err := renewed.Verify(x509.VerifyOptions{Roots: roots, DNSName: mesh.ServingName, CurrentTime: clock.Now()}); err != nil {
		t.Error(err)
	}
}

func TestServingCAIsNoMeshCA(t *testing.T) {
	a := open(t, newMemory(), nil)
	c, _ := issue(t, a, "default", "web-1", 0)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.ServingCA())
	if _, err := parse(t, c.Chain[0]).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the serving CA vouches for a proxy")
	}
	serving, err := a.serving.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Verify([]*x509.Certificate{serving.Leaf}); err == nil {
		t.Error("the serving certificate passes as a proxy's")
	}
}

func TestBrokenStateIsNamed(t *testing.T) {
	tests := map[string]struct {
		bend func(m *memory)
		want string
	}{
		"serving CA without its key":  {func(m *memory) { delete(m.files, servingCAKey) }, servingCAKey},
		"serving CA that is no PEM":   {func(m *memory) { m.files[servingCAFile] = []byte("x") }, servingCAFile},
		"serving key of another CA":   {func(m *memory) { m.files[servingCAKey] = m.files[tokenKeyFile] }, "do not belong together"},
		"token key that is no PEM":    {func(m *memory) { m.files[tokenKeyFile] = []byte("secret") }, tokenKeyFile},
		"admin token that is nothing": {func(m *memory) { m.files[adminTokenFile] = []byte("\n") }, "too short"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := newMemory()
			open(t, storage, nil)
			tc.bend(storage)
			_, err := New(Options{Storage: storage})
			contains(t, err, tc.want)
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error has the file's content in it: %v", err)
			}
		})
	}
}

func TestExpiryOfCAsIsMeasured(t *testing.T) {
	clock := newClock()
	registry := prometheus.NewRegistry()
	a, err := New(Options{Storage: newMemory(), Now: clock.Now, Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Ensure("default", 100*time.Hour); err != nil {
		t.Fatal(err)
	}
	clock.Add(time.Hour)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "sonde_identity_ca_expiry_seconds" {
			for _, m := range f.GetMetric() {
				found[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if found["default"] != (99*time.Hour).Seconds() || found[""] <= 0 {
		t.Errorf("sonde_identity_ca_expiry_seconds = %v, want 99 hours for the mesh, and the serving CA", found)
	}
}

// FuzzReadRequest checks that a request is accepted or refused with a reason.
func FuzzReadRequest(f *testing.F) {
	f.Add(newCSR(f, newKey(f), nil))
	f.Add([]byte{})
	f.Add([]byte{0x30, 0x80})
	f.Fuzz(func(t *testing.T, der []byte) {
		if public, _, err := readRequest(der); (public == nil) == (err == nil) {
			t.Errorf("readRequest() = %v, %v, want one of them", public, err)
		}
	})
}
