package mtls

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const serverAddress = "10.1.0.1:5678"

// served is a gRPC server with credentials. Its Watch calls last as long as the connection.
type served struct {
	t           *testing.T
	serving     *serving.Certificate
	authority   *identity.Authority
	network     *virtual.Network
	registry    *prometheus.Registry
	credentials *Credentials
	callers     chan identity.Peer // of each stream
	away        atomic.Bool        // rejects all calls
	stop        func()             // waits for the clients
}

func newAuthority(t *testing.T) (*store.State, *identity.Authority) {
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

// newServed returns a served with credentials, but without a server.
func newServed(t *testing.T, l limits) *served {
	t.Helper()
	s := &served{t: t, network: virtual.NewNetwork(), registry: prometheus.NewRegistry(), callers: make(chan identity.Peer, 100)}
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

func serve(t *testing.T, l limits, more ...grpc.ServerOption) *served {
	t.Helper()
	s := newServed(t, l)
	listener, err := s.network.Listen(t.Context(), "tcp", serverAddress)
	if err != nil {
		t.Fatal(err)
	}
	who := func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		p, err := PeerFromContext(stream.Context())
		if err != nil {
			p = identity.Peer{Subject: identity.Subject{Dataplane: err.Error()}}
		}
		s.callers <- p
		return handler(srv, stream)
	}
	g := grpc.NewServer(append(append(s.credentials.ServerOptions(), grpc.ChainStreamInterceptor(who)), more...)...)
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

// dial connects without TLS. All clients have one address.
func (s *served) dial(ctx context.Context, address string) (net.Conn, error) {
	return s.network.DialFrom("10.1.0.2")(ctx, "tcp", address)
}

// raw connects without TLS, and closes the connection with the test.
func (s *served) raw() net.Conn {
	s.t.Helper()
	c, err := s.dial(s.t.Context(), serverAddress)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// handshake connects with TLS, without a call. The server may still reject the certificate.
func (s *served) handshake(config *tls.Config) (*tls.Conn, error) {
	s.t.Helper()
	c := tls.Client(s.raw(), config)
	return c, c.HandshakeContext(s.t.Context())
}

// client returns a client whose connection is closed with the test.
func (s *served) client(config *tls.Config) *grpc.ClientConn {
	s.t.Helper()
	return s.clientOf(serverAddress, config)
}

func (s *served) clientOf(address string, config *tls.Config) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(s.dial))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// check makes a call over its own connection.
func (s *served) check(config *tls.Config, r *healthv1.HealthCheckRequest) error {
	s.t.Helper()
	conn := s.client(config)
	defer func() { _ = conn.Close() }()
	_, err := healthv1.NewHealthClient(conn).Check(wait.Context(s.t), r)
	return err
}

// ended is the time and error of a stream's end.
type ended struct {
	at  time.Time
	err error
}

// watch opens a stream, and reports its end.
func (s *served) watch(config *tls.Config, options ...grpc.CallOption) <-chan ended {
	s.t.Helper()
	conn := s.client(config)
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
	return wait.Receive(s.t, "a call", s.callers)
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

// counts checks the current number of connections with a reason.
func (s *served) counts(reason string, want float64) {
	s.t.Helper()
	synctest.Wait()
	if got := s.closed(reason); got != want {
		s.t.Errorf("%v connections are counted as %s, want %v", got, reason, want)
	}
}

// goesOn checks that a stream has not ended.
func (s *served) goesOn(what string, end <-chan ended) {
	s.t.Helper()
	synctest.Wait()
	select {
	case e := <-end:
		s.t.Errorf("%s ended: %v", what, e.err)
	default:
	}
}

func (s *served) certificate(validity time.Duration) (tls.Certificate, identity.Certificate) {
	s.t.Helper()
	return issue(s.t, s.authority, "default", validity)
}

// issue creates the certificate of web-1 in a mesh.
func issue(t *testing.T, a *identity.Authority, meshName string, validity time.Duration) (tls.Certificate, identity.Certificate) {
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

// pipe connects a client with this certificate. It returns the peer that the server sees, and the time and reason of
// the connection's end.
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
	if err := server.SetDeadline(time.Time{}); err != nil { // like gRPC
		s.t.Fatal(err)
	}
	return *auth.(authInfo).peer, end
}
