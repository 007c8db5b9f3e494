package webhookconfig

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/identity/ca"
)

const webhookHost = "sonde-cp.sonde-system.svc"

// certificateFor returns a certificate for a name that is valid for an hour, and its CA.
func certificateFor(t *testing.T, name string) (*tls.Certificate, []byte) {
	t.Helper()
	authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("test")}, time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Sign(&x509.Certificate{DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
		ca.NewKey().Public(), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bundle, _ := authority.Encode()
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, Leaf: leaf}, bundle
}

func TestWebhookCertificate(t *testing.T) {
	good, bundle := certificateFor(t, webhookHost)
	block, _ := pem.Decode(bundle)
	signing, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	other, otherBundle := certificateFor(t, "web.shop.svc")
	away := errors.New("connection refused")
	has := func(bundles ...[]byte) func(context.Context) ([][]byte, error) {
		return func(context.Context) ([][]byte, error) { return bundles, nil }
	}
	gone := func(context.Context) ([][]byte, error) { return nil, away }
	tests := map[string]struct {
		certificate *tls.Certificate
		ca          []byte
		bundles     func(context.Context) ([][]byte, error)
		known       [][]byte // bundles known before
		later       time.Duration
		signs       bool   // whether the control plane signs
		want        string // "" for none
	}{
		"good":                              {certificate: good, ca: bundle, bundles: has(bundle, bundle)},
		"two CAs are trusted":               {certificate: good, ca: bundle, bundles: has(append(otherBundle, bundle...))},
		"no configuration":                  {certificate: good, ca: bundle, bundles: has()},
		"configuration of somebody else":    {certificate: good, ca: bundle},
		"CA of somebody else":               {certificate: good},
		"expired":                           {certificate: good, ca: bundle, bundles: has(bundle), later: 2 * time.Hour, want: "not valid now"},
		"expired, CA of somebody else":      {certificate: good, later: 2 * time.Hour, want: "not valid now"},
		"not valid yet":                     {certificate: good, ca: bundle, later: -2 * time.Hour, want: "not valid now"},
		"not valid yet, of its own":         {certificate: good, ca: bundle, bundles: has(bundle), later: -48 * time.Hour, signs: true},
		"expired, of its own":               {certificate: good, ca: bundle, bundles: has(bundle), later: 2 * time.Hour, signs: true, want: "not valid now"},
		"another name":                      {certificate: other, ca: otherBundle, want: "not " + webhookHost},
		"another CA of its own":             {certificate: good, ca: otherBundle, want: "its CA does not verify it"},
		"API servers have another CA":       {certificate: good, ca: bundle, bundles: has(bundle, otherBundle), want: "API servers do not trust it: caBundle"},
		"API servers have none yet":         {certificate: good, ca: bundle, bundles: has(bundle, nil), want: "not in the webhook configuration yet"},
		"API servers have an invalid one":   {certificate: good, ca: bundle, bundles: has([]byte("x")), want: "has no certificate"},
		"API server away":                   {certificate: good, ca: bundle, bundles: gone, known: [][]byte{bundle}},
		"API server away from the start":    {certificate: good, ca: bundle, bundles: gone},
		"API server away after another CA":  {certificate: good, ca: bundle, bundles: gone, known: [][]byte{otherBundle}, want: "API servers do not trust it"},
		"API server away, and it expires":   {certificate: good, ca: bundle, bundles: gone, known: [][]byte{bundle}, later: 2 * time.Hour, want: "not valid now"},
		"API server has the right CA again": {certificate: good, ca: bundle, bundles: has(bundle), known: [][]byte{otherBundle}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := Check{
				Certificate: func() (*tls.Certificate, error) { return tc.certificate, nil }, CA: func() []byte { return tc.ca }, Name: webhookHost,
				Bundles: tc.bundles, Now: func() time.Time { return time.Now().Add(tc.later) }, known: tc.known,
			}
			if tc.signs {
				w.Signing = func() *x509.Certificate { return signing }
			}
			err := w.Run(t.Context())
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Run() = %v, want %q", err, tc.want)
			}
		})
	}
}
