package pipeline

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const adsAddress = "10.0.0.100:5678"

// adsServer serves ADS of a pipeline with mTLS.
type adsServer struct {
	*Pipeline
	t         *testing.T
	authority *identity.Authority
	serving   *serving.Certificate
	network   *virtual.Network
	applied   chan struct{}
	// metadata of the nodes of streams. Default: none.
	metadata *structpb.Struct
}

func serveADS(t *testing.T) *adsServer {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	s := &adsServer{t: t, applied: make(chan struct{}, 10)}
	if s.authority, err = identity.New(t.Context(), identity.Options{Secrets: state.Secrets(), Proxies: identity.NoProxies}); err != nil {
		t.Fatal(err)
	}
	if s.serving, err = serving.Open(t.Context(), serving.Options{Storage: state.Secrets()}); err != nil {
		t.Fatal(err)
	}
	c, err := mtls.New(mtls.Options{TLS: s.serving.TLS(), Verifier: s.authority})
	if err != nil {
		t.Fatal(err)
	}
	s.Pipeline = New(Options{
		View: meshview.Options{Applied: func(meshview.Change) { s.applied <- struct{}{} }}, Authority: s.authority,
	}, Authorize)
	s.network = virtual.NewNetwork()
	listener, err := s.network.Listen(t.Context(), "tcp", adsAddress)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(c.ServerOptions(), xds.ServerOptions()...)...)
	s.XDS.Register(server)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	running.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		server.Stop()
		s.XDS.Wait()
		running.Wait()
		_ = state.Close()
	})
	<-s.applied // the first view
	return s
}

func (s *adsServer) dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return s.network.DialFrom("10.0.0.1")(ctx, "tcp", address)
	})
}

func (s *adsServer) put(d *mesh.Dataplane) {
	s.t.Helper()
	d.SetDefaults()
	s.Builder.Set("", d)
	<-s.applied
}

// stream opens an ADS stream with a new certificate, and asks for listeners.
func (s *adsServer) stream(who identity.Subject) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	s.t.Helper()
	key := ca.NewKey()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		s.t.Fatal(err)
	}
	issued, err := s.authority.Issue(s.t.Context(), identity.Request{Subject: who, CSR: csr})
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.serving.CA())
	conn, err := grpc.NewClient("passthrough:///"+adsAddress, s.dialer(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: issued.Chain, PrivateKey: key}},
	})))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: who.ID(), Metadata: s.metadata}, TypeUrl: string(resource.Listener)}); err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func pod(uid, address string) *mesh.Dataplane {
	d := &mesh.Dataplane{Identity: mesh.Identity{Path: "/ns/shop/sa/db", Instance: uid}}
	d.Mesh, d.Name = "default", "db-0.shop"
	d.Spec.Networking.Address = address
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: "db"}}}
	return d
}

// A stream of a deleted pod ends when its successor comes, without anything of that, and cannot be opened again.
func TestADSOfADeletedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serveADS(t)
		one, two := pod("1", "10.0.0.1"), pod("2", "10.0.0.2")
		s.put(one)
		old := s.stream(identity.SubjectOf(one))
		r, err := old.Recv()
		if err != nil || !strings.Contains(r.String(), "10.0.0.1") {
			t.Fatalf("the first pod gets %v, %v", r, err)
		}
		s.put(two)
		refused := func(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
			t.Helper()
			for {
				r, err := stream.Recv()
				if err == nil && !strings.Contains(r.String(), "10.0.0.2") {
					continue
				}
				if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), `the current one has UID "2"`) {
					t.Errorf("the deleted pod gets %v, %v, want PermissionDenied", r, err)
				}
				return
			}
		}
		refused(old)
		refused(s.stream(identity.SubjectOf(one)))
		refused(s.stream(identity.Subject{Mesh: "default", Dataplane: "db-0.shop", Path: "/workload/db"}))
		if r, err := s.stream(identity.SubjectOf(two)).Recv(); err != nil || !strings.Contains(r.String(), "10.0.0.2") {
			t.Errorf("the second pod gets %v, %v", r, err)
		}
	})
}
