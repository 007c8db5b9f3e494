package mesh

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/sonde-mesh/sonde/test/must"
)

// tlsApplication serves TLS with its own certificate, and returns the CA that clients must trust.
func tlsApplication(t *testing.T, at string) *x509.CertPool {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s over %s", r.TLS.ServerName, r.TLS.NegotiatedProtocol)
	}))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", at)
	must.Do(t, err)
	_ = s.Listener.Close() // httptest opened this listener
	s.Listener = l
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	return pool
}

// askTLS calls over TLS. The application itself must terminate TLS.
func askTLS(ctx context.Context, at string, trusted *x509.CertPool) (string, error) {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: trusted, ServerName: "example.com"},
		ForceAttemptHTTP2: true,
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/", nil)
	if err != nil {
		return "", err
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

func TestApplicationsOwnTLS(t *testing.T) {
	for _, mode := range []string{strict, permissive} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode)
			own := inbound{service: "own-tls", protocol: "tcp", at: must.FreeAddress(t, m), app: must.FreeAddress(t, m)}
			trusted := tlsApplication(t, own.app)
			p := newPair(t, m, own)
			const want = "example.com over h2"

			t.Run("within mTLS", func(t *testing.T) {
				before := p.handshakes(t, own.service)
				got, err := askTLS(t.Context(), p.a.Outbounds[own.service], trusted)
				if got != want || err != nil {
					t.Errorf("the application returns %q, %v, want %q", got, err, want)
				}
				if p.handshakes(t, own.service) == before {
					t.Error("the call is not inside mTLS")
				}
			})
			t.Run("alone", func(t *testing.T) {
				before := p.handshakes(t, own.service)
				got, err := askTLS(t.Context(), own.at, trusted)
				if mode == strict {
					if err == nil {
						t.Errorf("the application returns %q to a client outside of the mesh", got)
					}
					return
				}
				if got != want || err != nil {
					t.Errorf("the application returns %q, %v, want %q", got, err, want)
				}
				if p.handshakes(t, own.service) != before {
					t.Error("Envoy ended the application's TLS")
				}
			})
		})
	}
}
