package serving

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// earlier returns the storage of a release without rotation.
func earlier(t *testing.T) *secrettest.Memory {
	t.Helper()
	m := &secrettest.Memory{}
	open(t, Options{Storage: m})
	m.Put(stateName, nil)
	return m
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
	c := open(t, Options{Storage: &secrettest.Memory{}, Now: func() time.Time { return now }})
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
	storage := &secrettest.Memory{}
	first := open(t, Options{Storage: storage})
	if restarted := open(t, Options{Storage: storage}); string(restarted.CA()) != string(first.CA()) {
		t.Error("the CA is another one after the restart")
	}
}

func TestCAOfAnEarlierReleaseIsTakenOver(t *testing.T) {
	storage := earlier(t)
	certificate, key := storage.Get(caName), storage.Get(keyName)
	c := open(t, Options{Storage: storage})
	if !bytes.Equal(c.CA(), certificate) {
		t.Error("the CA is another one")
	}
	if made := parse(t, certificate).NotBefore.Unix(); c.Trusted().Epoch != made {
		t.Errorf("epoch = %d, want when the CA was made, %d", c.Trusted().Epoch, made)
	}
	if !bytes.Equal(storage.Get(caName), certificate) || !bytes.Equal(storage.Get(keyName), key) {
		t.Error("the earlier release would not find its files")
	}
	if again := open(t, Options{Storage: storage}); again.Trusted().ID != c.Trusted().ID || again.Trusted().Epoch != c.Trusted().Epoch {
		t.Error("the next start has another CA or epoch")
	}
}

func TestBrokenStateOfAnEarlierReleaseIsNamed(t *testing.T) {
	other := earlier(t)
	tests := map[string]struct {
		name string
		data []byte
		want string
	}{
		"CA without its key": {keyName, nil, keyName},
		"CA that is no PEM":  {caName, []byte("x"), caName},
		"key that is no PEM": {keyName, []byte("secret"), keyName},
		"key that is empty":  {keyName, []byte{}, keyName},
		"key of another CA":  {keyName, other.Get(keyName), "do not match"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			storage := earlier(t)
			storage.Put(tc.name, tc.data)
			_, err := Open(t.Context(), Options{Storage: storage})
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error = %v, want one that says %q, without the content of the file", err, tc.want)
			}
		})
	}
}

func TestCAIsMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := open(t, Options{Storage: &secrettest.Memory{}, Registerer: registry})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if label := f.GetMetric()[0].GetLabel()[0]; label.GetName() != "mesh" || label.GetValue() != "" {
			t.Errorf("%s has the label %v, want an empty mesh", f.GetName(), label)
		}
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if len(got) != 3 || got["sonde_identity_ca_expiry_seconds"] <= 0 || got["sonde_identity_ca_validity_seconds"] < got["sonde_identity_ca_expiry_seconds"] || got["sonde_bundle_epoch"] != float64(c.Trusted().Epoch) {
		t.Errorf("metrics = %v, want the expiry of the CA, its validity and its epoch", got)
	}
}

// A clock that is set back does not delay the renewal until clients with the right time reject the certificate. The
// test above shows that the wall clock alone is enough, as after a sleep.
func TestRenewalAfterClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := 240 * time.Hour
		c := open(t, Options{Storage: &secrettest.Memory{}, Now: func() time.Time { return time.Now().Round(0).Add(ahead) }})
		serial := func() string {
			leaf, err := c.leaf.get()
			if err != nil {
				t.Fatal(err)
			}
			return leaf.Leaf.SerialNumber.String()
		}
		first := serial()
		ahead = 0
		time.Sleep(certificateValidity*2/3 - time.Second)
		if serial() != first {
			t.Error("renewed before two thirds of its validity have passed")
		}
		time.Sleep(time.Second)
		if serial() == first {
			t.Error("not renewed once two thirds of its validity have passed")
		}
	})
}
