package handshakes

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// server has the credentials of a control plane.
type server struct {
	b         *testing.B
	authority *identity.Authority
	serving   *serving.Certificate
	registry  *prometheus.Registry
	address   string
}

// serve returns a server whose process has a memory limit in bytes; 0 means the default.
func serve(b *testing.B, memory uint64) *server {
	b.Helper()
	secrets := &secrettest.Memory{}
	s := &server{b: b, registry: prometheus.NewRegistry()}
	var err error
	if s.authority, err = identity.New(b.Context(), identity.Options{Secrets: secrets, Records: secrettest.Records{Memory: secrets}}); err != nil {
		b.Fatal(err)
	}
	if s.serving, err = serving.Open(b.Context(), serving.Options{Storage: secrets}); err != nil {
		b.Fatal(err)
	}
	c, err := mtls.New(mtls.Options{TLS: s.serving.TLS(), Verifier: s.authority, Registerer: s.registry, Memory: memory, Joins: []string{healthv1.Health_Check_FullMethodName}})
	if err != nil {
		b.Fatal(err)
	}
	s.address = listen(b, c.ServerOptions()...)
	return s
}

// plain serves gRPC with only TLS, as a floor.
func (s *server) plain() (address string) {
	s.b.Helper()
	config := s.serving.TLS().Clone()
	config.ClientAuth = tls.RequestClientCert
	return listen(s.b, grpc.Creds(credentials.NewTLS(config)))
}

// listen serves until the benchmark ends.
func listen(b *testing.B, options ...grpc.ServerOption) (address string) {
	b.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	g := grpc.NewServer(options...)
	healthv1.RegisterHealthServer(g, health.NewServer())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(listener)
	}()
	b.Cleanup(func() {
		g.Stop()
		<-served
	})
	return listener.Addr().String()
}

// tls returns a client's TLS configuration, with or without a proxy's certificate.
func (s *server) tls(identified bool) *tls.Config {
	s.b.Helper()
	config, err := sondecp.TrustOnly(s.serving)
	if err != nil {
		s.b.Fatal(err)
	}
	if !identified {
		return config
	}
	if err := s.authority.Ensure(s.b.Context(), "default", 0); err != nil {
		s.b.Fatal(err)
	}
	pair, err := sondecp.Issue(s.authority, identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"})
	if err != nil {
		s.b.Fatal(err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config
}

// unauthenticated returns the number of connections without a verified certificate.
func (s *server) unauthenticated() float64 {
	s.b.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.b.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sonde_identity_unauthenticated_connections" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	s.b.Fatal("connections without a certificate are not counted")
	return 0
}
