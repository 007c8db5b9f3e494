package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/admin/lists"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "the-admin-token"

// Addresses on the network of a server, its client and another caller.
const (
	serverAt = "10.0.0.1:5681"
	client   = "10.0.0.2"
	other    = "10.0.0.3"
)

// fakes replaces the stages that Options connects.
type fakes struct {
	Options
	roots *x509.CertPool
	log   *logtest.Buffer
	// drained records the calls of Drain with a reason.
	drained []string
}

func newFakes(t *testing.T) *fakes {
	t.Helper()
	config, roots := certificate.Server(t, "example.com")
	f := &fakes{roots: roots, log: &logtest.Buffer{}}
	view := testView()
	f.Options = Options{
		TLS:         config,
		BearerToken: testToken,
		View:        func() *meshview.View { return view },
		Resources: func(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool) {
			if proxy != "default/web-1" {
				return nil, false
			}
			cluster, err := anypb.New(&clusterv3.Cluster{Name: "cluster-of-" + string(kind)})
			return []*anypb.Any{cluster}, err == nil
		},
		Bootstrap: func(p *meshview.Proxy) ([]byte, error) {
			return []byte(`{"node":{"id":"` + p.ID() + `"}}`), nil
		},
		Token: func(token identity.Subject, validity time.Duration) (string, time.Time, error) {
			return "signed:" + token.Mesh + ":" + token.Dataplane + ":" + token.Path + ":" + validity.String(), time.Unix(0, 0).Add(validity), nil
		},
		Query: func(_ context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
			return take([]byte(proxy + " " + string(view)))
		},
		Drain: func(_ context.Context, p *meshview.Proxy, reason *string) (string, error) {
			if reason == nil {
				return "dataplane is drained", nil
			}
			f.drained = append(f.drained, p.ID()+": "+*reason)
			return "", nil
		},
		Health:    health.New(health.Options{}),
		Lists:     &lists.Answers{},
		Rotations: adminv1.UnimplementedAdminServiceServer{},
		Strict:    adminv1.UnimplementedAdminServiceServer{},
		Logger:    slog.New(slog.NewTextHandler(f.log, nil)),
	}
	return f
}

// newTokenFakes has a pod, web-2, and a Dataplane without a workload, alone-1. Its signer rejects a validity of less
// than a second.
func newTokenFakes(t *testing.T) *fakes {
	t.Helper()
	f := newFakes(t)
	f.View().Meshes["default"].Proxies.Get("web-2").Dataplane.Identity = mesh.Identity{Path: "/ns/shop/sa/web", Instance: "1"}
	inMesh := f.View().Meshes["default"]
	inMesh.Proxies = inMesh.Proxies.With("alone-1", &meshview.Proxy{Dataplane: &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "alone-1"}}})
	sign := f.Token
	f.Token = func(token identity.Subject, validity time.Duration) (string, time.Time, error) {
		if validity < time.Second {
			return "", time.Time{}, errors.New("validity: too short")
		}
		return sign(token, validity)
	}
	return f
}

// testView has web-1 and web-2 in mesh default, and another web-1 in mesh other.
func testView() *meshview.View {
	b := meshview.NewBuilder(meshview.Options{})
	for _, id := range []mesh.ID{"default/web-1", "default/web-2", "other/web-1"} {
		meshName, name := mesh.SplitID(id)
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshName, Name: name}}
		d.Spec.Networking.Address = "10.0.0.1"
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}}}
		for _, o := range []mesh.Object{&mesh.Mesh{Name: meshName}, d} {
			o.SetDefaults()
			b.Set("test", o)
		}
	}
	change, _ := b.Build()
	return change.After
}

// serve starts a server at serverAt of a network of its own. The server ends with the test, which fails if Serve
// returns an error.
func serve(t *testing.T, o Options, more ...func(*Server)) *virtual.Network {
	t.Helper()
	server, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range more {
		change(server)
	}
	network := virtual.NewNetwork()
	lis, err := network.Listen(t.Context(), "tcp", serverAt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return network
}

// dial connects a client, which is closed before the server ends.
func dial(t *testing.T, n *virtual.Network, roots *x509.CertPool) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+serverAt,
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return n.DialFrom(client)(ctx, "tcp", address)
		}),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS13})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// start serves f, and returns a client and a context with the right token.
func start(t *testing.T, f *fakes) (adminv1.AdminServiceClient, context.Context) {
	t.Helper()
	return adminv1.NewAdminServiceClient(dial(t, serve(t, f.Options), f.roots)), withToken(t.Context(), testToken)
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}
