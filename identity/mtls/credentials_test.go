package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

func TestConnectionEndsBeforeItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServed(t, limits{})
		lasting, _ := s.certificate(time.Hour)
		_, other := s.pipe(lasting)
		pair, short := s.certificate(time.Minute)
		began := time.Now()
		peer, end := s.pipe(pair)
		if peer.ID() != "default/web-1" || peer.Serial != short.Serial {
			t.Errorf("peer = %+v, want default/web-1 with serial %s", peer, short.Serial)
		}
		e := <-end
		life := short.NotAfter.Sub(began)
		if took := e.at.Sub(began); took < life*8/10 || took > life*9/10 {
			t.Errorf("the connection ended after %s, want 80 to 90 %% of the %s for which its certificate is valid", took, life)
		}
		s.goesOn("a connection with a good certificate", other)
		s.counts(closedExpiring, 1)
	})
}

func TestUnauthenticatedConnectionsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{unauthenticated: 2})
		pair, _ := s.certificate(time.Hour)
		s.watch(s.tls())
		s.watch(s.tls())
		for range 2 {
			if got := s.caller(); got.Dataplane != errUnauthenticated.Error() {
				t.Fatalf("caller = %+v, want none", got)
			}
		}
		c, err := s.handshake(s.tls())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a third connection without a certificate is served")
		}
		s.watch(s.tls(pair))
		if got := s.caller(); got.ID() != "default/web-1" {
			t.Errorf("caller = %+v; the limit is not for those with a certificate", got)
		}
	})
}

func TestUnauthenticatedConnectionsAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{unauthenticated: 2})
		pair, _ := s.certificate(time.Hour)
		authenticated := s.watch(s.tls(pair))
		s.caller()
		began := time.Now()
		first, second := s.watch(s.tls()), s.watch(s.tls())
		s.caller()
		s.caller()
		for _, end := range []<-chan ended{first, second} {
			if took := wait.Receive(t, "the end of a connection without a certificate", end).at.Sub(began); took != 30*time.Second {
				t.Errorf("a connection without a certificate ended after %s, want 30s", took)
			}
		}
		s.counts(closedUnauthenticated, 2)
		s.watch(s.tls()) // a place is free again
		s.caller()
		s.goesOn("the connection with a certificate", authenticated)
	})
}

func TestUnauthenticatedConnectionsAreShortInBytes(t *testing.T) {
	const limit = 64 << 10
	tests := map[string]struct {
		identified bool
		size       int
		ends       bool
	}{
		"no certificate, under the limit": {false, limit / 2, false},
		"no certificate, above it":        {false, limit, true},
		"certificate, far above it":       {true, 10 * limit, false},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			s := serve(t, limits{unauthenticatedBytes: limit})
			config := s.tls()
			if tc.identified {
				pair, _ := s.certificate(time.Hour)
				config = s.tls(pair)
			}
			// The call returns Unavailable only if the connection is closed; otherwise the server responds.
			err := s.check(config, &healthv1.HealthCheckRequest{Service: strings.Repeat("x", tc.size)})
			if got := status.Code(err) == codes.Unavailable; got != tc.ends {
				t.Errorf("a call with %d bytes: %v, want the connection's end: %v", tc.size, err, tc.ends)
			}
		})
	}
}

func TestClientCertificatesAreVerifiedInTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{})
		other, _ := issue(t, s.authority, "other", time.Hour)
		issue(t, s.authority, "default", time.Hour)
		s.watch(s.tls(other))
		if got := s.caller(); got.ID() != "other/web-1" {
			t.Errorf("a proxy of mesh other passes as %s", got.ID())
		}
		_, stranger := newAuthority(t)
		theirs, _ := issue(t, stranger, "default", time.Hour)
		own, err := s.serving.TLS().GetCertificate(&tls.ClientHelloInfo{})
		if err != nil {
			t.Fatal(err)
		}
		for name, pair := range map[string]tls.Certificate{"of another control plane": theirs, "of the control plane itself": *own} {
			before := s.closed(closedHandshake)
			wait.Receive(t, "the end of a call with a certificate "+name, s.watch(s.tls(pair)))
			s.counts(closedHandshake, before+1)
			if len(s.callers) > 0 {
				t.Errorf("a handler was called with a certificate %s, by %+v", name, <-s.callers)
			}
		}
	})
}

func TestServingCAIsNoMeshCA(t *testing.T) {
	s := newServed(t, limits{})
	_, c := s.certificate(time.Hour)
	leaf, err := x509.ParseCertificate(c.Chain[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.serving.CA())
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the serving CA vouches for a proxy")
	}
}
