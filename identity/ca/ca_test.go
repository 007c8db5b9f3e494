package ca

import (
	"crypto/x509"
	"testing"
	"time"
)

// New certificates are also valid on slow clocks; a CA and the control plane's own certificates on clocks that are a
// day slow.
func TestNotBefore(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c, err := New(&x509.Certificate{}, now, 365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	short, err := New(&x509.Certificate{}, now, 10*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	later := now.Add(30 * 24 * time.Hour)
	own, err := c.SignOwn(&x509.Certificate{}, NewKey().Public(), later, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	proxy, err := c.Sign(&x509.Certificate{}, NewKey().Public(), later, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cert *x509.Certificate
		want time.Time
	}{
		"CA":         {c.Cert, now.Add(-24 * time.Hour)},
		"short CA":   {short.Cert, now.Add(-time.Hour)},
		"own":        {own, now.Add(-24 * time.Hour)},
		"of a proxy": {proxy, later.Add(-5 * time.Minute)},
	} {
		if !tc.cert.NotBefore.Equal(tc.want) {
			t.Errorf("%s: not before %s, want %s", name, tc.cert.NotBefore, tc.want)
		}
	}
}
