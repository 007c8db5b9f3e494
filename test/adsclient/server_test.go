package adsclient

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/mtls"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	proxy = "default/web-1"
	// patience is how long a test waits for something that must happen.
	patience = 20 * time.Second
)

// plane is a control plane without a mesh: every proxy gets the same set.
type plane struct {
	t         *testing.T
	authority *identity.Authority
	serving   *serving.Certificate
	server    *xds.Server
	address   string

	mu  sync.Mutex
	set *resource.Set
}

// Attach implements xds.Source.
func (p *plane) Attach(string) resource.Desired {
	p.mu.Lock()
	defer p.mu.Unlock()
	return resource.Desired{Shared: p.set}
}

// Detach implements xds.Source.
func (p *plane) Detach(string) {}

func (p *plane) publish(all ...*resource.Resource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = resource.NewSet(all...)
	p.server.Publish(map[string]resource.Desired{proxy: {Shared: p.set}})
}

func startPlane(t *testing.T, authorize xds.Authorizer, all ...*resource.Resource) *plane {
	t.Helper()
	state, err := store.OpenState(t.TempDir() + "/state")
	if err != nil {
		t.Fatal(err)
	}
	p := &plane{t: t, set: resource.NewSet(all...)}
	if p.authority, err = identity.New(identity.Options{Secrets: state, Records: state}); err != nil {
		t.Fatal(err)
	}
	if p.serving, err = serving.Open(serving.Options{Storage: state}); err != nil {
		t.Fatal(err)
	}
	c, err := mtls.New(mtls.Options{TLS: p.serving.TLS(), Verifier: p.authority})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.authority.Ensure(mesh.DefaultMesh, 0); err != nil {
		t.Fatal(err)
	}
	p.server = xds.NewServer(xds.Options{}, p, authorize)
	server := grpc.NewServer(slices.Concat(c.ServerOptions(), xds.ServerOptions())...)
	p.server.Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		p.server.Wait()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := state.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func anyone(context.Context, string) error { return nil }

// options returns those of a client of the proxy, with a certificate.
func (p *plane) options(s *State) Options {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		p.t.Fatal(err)
	}
	issued, err := p.authority.Issue(identity.Request{Subject: identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: "web-1", Workload: "web"}, CSR: csr})
	if err != nil {
		p.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.serving.CA())
	return Options{Address: p.address, Node: proxy, State: s, TLS: &tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{{Certificate: issued.Chain, PrivateKey: key}},
	}}
}

// run opens a stream, and returns a function that ends it.
func (p *plane) run(o Options) (stop func()) {
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != context.Canceled { //nolint:errorlint // it is returned as it is
			p.t.Errorf("Run() error = %v, want %v", err, context.Canceled)
		}
	})
	p.t.Cleanup(stop)
	return stop
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !holds() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func encode(t *testing.T, name string, m proto.Message) *resource.Resource {
	t.Helper()
	r, err := resource.Encode(name, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func cluster(t *testing.T, name, stat string) *resource.Resource {
	return encode(t, name, &clusterv3.Cluster{
		Name: name, AltStatName: stat, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
	})
}

func assignment(t *testing.T, name string) *resource.Resource {
	return encode(t, name, &endpointv3.ClusterLoadAssignment{ClusterName: name})
}

func route(t *testing.T, name string) *resource.Resource {
	return encode(t, name, &routev3.RouteConfiguration{Name: name})
}

func listener(t *testing.T, name, route string) *resource.Resource {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:     "x",
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: route, ConfigSource: ads()}},
	}
	return encode(t, name, &listenerv3.Listener{Name: name, FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{Name: "http", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: resource.Any(manager)}}},
	}}})
}
