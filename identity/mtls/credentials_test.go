package mtls

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/waittest"
	"github.com/sonde-mesh/sonde/store"
)

const patience = 10 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served is a gRPC server with credentials. A Watch lasts as long as its connection.
type served struct {
	t           testing.TB
	serving     *serving.Certificate
	authority   *identity.Authority
	address     string
	registry    *prometheus.Registry
	credentials *Credentials
	callers     chan identity.Peer // of each stream
	away        atomic.Bool        // it serves no calls
	stop        func()             // waits for the clients
}

func newAuthority(t testing.TB) (*store.State, *identity.Authority) {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	a, err := identity.New(t.Context(), identity.Options{Secrets: state.Secrets(), Records: state})
	if err != nil {
		t.Fatal(err)
	}
	return state, a
}

// newServed has the credentials, and no server.
func newServed(t testing.TB, l limits) *served {
	t.Helper()
	s := &served{t: t, registry: prometheus.NewRegistry(), callers: make(chan identity.Peer, 100)}
	state, authority := newAuthority(t)
	s.authority = authority
	var err error
	if s.serving, err = serving.Open(t.Context(), serving.Options{Storage: state.Secrets()}); err != nil {
		t.Fatal(err)
	}
	serves := func() error {
		if s.away.Load() {
			return errors.New("another replica is ahead")
		}
		return nil
	}
	c, err := newCredentials(Options{TLS: s.serving.TLS(), Verifier: authority, Registerer: s.registry, Serves: serves,
		Joins: []string{healthv1.Health_Watch_FullMethodName, healthv1.Health_Check_FullMethodName}}, l)
	if err != nil {
		t.Fatal(err)
	}
	s.credentials = c
	return s
}

func serve(t testing.TB, l limits, more ...grpc.ServerOption) *served {
	t.Helper()
	s := newServed(t, l)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	who := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		p, err := PeerFromContext(stream.Context())
		if err != nil {
			p = identity.Peer{Subject: identity.Subject{Dataplane: err.Error()}}
		}
		s.callers <- p
		return handler(srv, stream)
	}
	g := grpc.NewServer(append(append(s.credentials.ServerOptions(), grpc.StreamInterceptor(who)), more...)...)
	healthv1.RegisterHealthServer(g, health.NewServer())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listener) })
	s.stop = func() {
		g.GracefulStop()
		running.Wait()
	}
	t.Cleanup(func() {
		g.Stop()
		running.Wait()
	})
	return s
}

func (s *served) tls(certificates ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.serving.CA())
	return &tls.Config{RootCAs: roots, ServerName: mesh.ServingName, Certificates: certificates, NextProtos: []string{"h2"}}
}

// ended is when and why a stream ended.
type ended struct {
	at  time.Time
	err error
}

// watch opens a stream, and reports its end.
func (s *served) watch(config *tls.Config, options ...grpc.CallOption) <-chan ended {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan ended, 1)
	stream, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{}, options...)
	var reading sync.WaitGroup
	reading.Go(func() {
		for err == nil {
			_, err = stream.Recv()
		}
		end <- ended{time.Now(), err}
	})
	s.t.Cleanup(func() {
		cancel()
		_ = conn.Close()
		reading.Wait()
	})
	return end
}

func (s *served) caller() identity.Peer {
	s.t.Helper()
	select {
	case p := <-s.callers:
		return p
	case <-time.After(patience):
		s.t.Fatal("nobody calls")
	}
	return identity.Peer{}
}

func (s *served) closed(reason string) float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sonde_identity_connections_closed_total" && m.GetLabel()[0].GetValue() == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// counts waits for counters: a client may see the end of a connection before the server has counted it.
func (s *served) counts(reason string, want float64) {
	s.t.Helper()
	waittest.Until(s.t, patience, "connections that are counted as "+reason, func() error {
		if got := s.closed(reason); got < want {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func (s *served) certificate(validity time.Duration) (tls.Certificate, identity.Certificate) {
	s.t.Helper()
	return issue(s.t, s.authority, "default", validity)
}

// issue makes the certificate of web-1 in a mesh.
func issue(t testing.TB, a *identity.Authority, meshName string, validity time.Duration) (tls.Certificate, identity.Certificate) {
	t.Helper()
	if err := a.Ensure(t.Context(), meshName, 0); err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a.Issue(t.Context(), identity.Request{Subject: identity.Subject{Mesh: meshName, Dataplane: "web-1", Path: "/workload/web"}, CSR: csr, Validity: validity})
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: c.Chain, PrivateKey: key}, c
}

// pipe connects a client with this certificate, and returns who it is for the server, and when and why the server ends the connection.
func (s *served) pipe(pair tls.Certificate) (identity.Peer, <-chan ended) {
	s.t.Helper()
	raw, server := net.Pipe()
	client := tls.Client(raw, s.tls(pair))
	end := make(chan ended, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		_, err := client.Read(make([]byte, 1))
		end <- ended{time.Now(), err}
	})
	conn, auth, err := s.credentials.ServerHandshake(server)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = conn.Close()
		reading.Wait()
	})
	if err := server.SetDeadline(time.Time{}); err != nil { // as gRPC does
		s.t.Fatal(err)
	}
	return *auth.(authInfo).peer, end
}

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
		synctest.Wait()
		select {
		case e := <-other:
			t.Errorf("a connection with a good certificate ended: %v", e.err)
		default:
		}
		if n := s.closed(closedExpiring); n != 1 {
			t.Errorf("%v connections are counted as %s, want 1", n, closedExpiring)
		}
	})
}

func TestUnauthenticatedConnectionsAreFew(t *testing.T) {
	s := serve(t, limits{unauthenticated: 2, unauthenticatedLife: time.Minute, waitTimeout: 100 * time.Millisecond})
	pair, _ := s.certificate(time.Hour)
	s.watch(s.tls())
	s.watch(s.tls())
	for range 2 {
		if got := s.caller(); got.Dataplane != errUnauthenticated.Error() {
			t.Fatalf("caller = %+v, want none", got)
		}
	}
	if err := s.dialRaw(); err == nil {
		t.Error("a third connection without a certificate is served")
	}
	s.watch(s.tls(pair))
	if got := s.caller(); got.ID() != "default/web-1" {
		t.Errorf("caller = %+v; the limit is not for those with a certificate", got)
	}
}

func TestUnauthenticatedConnectionsAreShort(t *testing.T) {
	s := serve(t, limits{unauthenticated: 2, unauthenticatedLife: time.Second})
	pair, _ := s.certificate(time.Hour)
	authenticated := s.watch(s.tls(pair))
	s.caller()
	first, second := s.watch(s.tls(), grpc.WaitForReady(true)), s.watch(s.tls(), grpc.WaitForReady(true))
	for _, end := range []<-chan ended{first, second} {
		select {
		case <-end:
		case <-time.After(patience):
			t.Fatal("a connection without a certificate goes on")
		}
	}
	s.counts(closedUnauthenticated, 2)
	s.watch(s.tls(), grpc.WaitForReady(true)) // there is room again
	s.caller()
	select {
	case e := <-authenticated:
		t.Errorf("the connection with a certificate ended: %v", e.err)
	default:
	}
}

func TestUnauthenticatedConnectionsAreShortInBytes(t *testing.T) {
	const limit = 64 << 10
	s := serve(t, limits{unauthenticatedBytes: limit})
	pair, _ := s.certificate(time.Hour)
	check := func(config *tls.Config, size int) error {
		conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: strings.Repeat("x", size)})
		return err
	}
	tests := map[string]struct {
		config *tls.Config
		size   int
		ends   bool
	}{
		"no certificate, under the limit": {s.tls(), limit / 2, false},
		"no certificate, above it":        {s.tls(), limit, true},
		"certificate, far above it":       {s.tls(pair), 10 * limit, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			// The call is Unavailable only if the connection ends: otherwise the server answers.
			err := check(tc.config, tc.size)
			if got := status.Code(err) == codes.Unavailable; got != tc.ends {
				t.Errorf("a call with %d bytes: %v, want the connection's end: %v", tc.size, err, tc.ends)
			}
		})
	}
}

// dialRaw returns nil if the server accepts the handshake: then it sends its HTTP/2 settings.
func (s *served) dialRaw() error {
	s.t.Helper()
	conn, err := tls.Dial("tcp", s.address, s.tls())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

// patient are limits under which a client that the machine keeps waiting has not lost its place.
func patient() limits {
	return limits{
		patience: time.Minute, maxPatience: time.Minute, waitTimeout: time.Minute, helloTimeout: time.Minute, handshakeTimeout: time.Minute,
	}
}

// TestHandshakesWait connects more proxies than may handshake at the same time. All of them are served in turn.
func TestHandshakesWait(t *testing.T) {
	l := patient()
	l.handshakes = 1
	s := serve(t, l)
	const proxies = 20
	for range proxies {
		s.watch(s.tls())
	}
	for range proxies {
		s.caller()
	}
	if n := s.closed(closedLimit); n != 0 {
		t.Errorf("%v connections were refused", n)
	}
}

func TestClientCertificatesAreVerifiedInTheHandshake(t *testing.T) {
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
		t.Run(name, func(t *testing.T) {
			before := s.closed(closedHandshake)
			select {
			case <-s.watch(s.tls(pair)):
			case <-time.After(patience):
				t.Fatal("it is served")
			}
			s.counts(closedHandshake, before+1)
			select {
			case p := <-s.callers:
				t.Errorf("the handler was called by %+v", p)
			default:
			}
		})
	}
}

func TestServingCAIsNoMeshCA(t *testing.T) {
	s := serve(t, limits{})
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
