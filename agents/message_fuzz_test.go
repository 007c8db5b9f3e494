package agents

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

var fuzzSubject = identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}

// fuzzTokens knows one token.
type fuzzTokens struct{}

func (fuzzTokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	if token != "good" {
		return identity.Subject{}, errors.New("not a token")
	}
	return fuzzSubject, nil
}

// fuzzServer returns a server that knows one Dataplane. It ends with the test.
func fuzzServer(f *testing.F) *Server {
	f.Helper()
	state, err := store.OpenState(filepath.Join(f.TempDir(), "state"))
	if err != nil {
		f.Fatal(err)
	}
	authority, err := identity.New(f.Context(), identity.Options{Secrets: state.Secrets(), Records: state})
	if err != nil {
		f.Fatal(err)
	}
	builder := meshview.NewBuilder(meshview.Options{TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"test"}})
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = fuzzSubject.Mesh, fuzzSubject.Dataplane
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: "web"}}}
	m := &mesh.Mesh{Name: d.Mesh}
	for _, o := range []mesh.Object{m, d} {
		o.SetDefaults()
		builder.Set("test", o)
	}
	builder.Synced("test")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	viewed := make(chan struct{}, 1)
	running.Go(func() {
		_ = builder.Run(ctx, func(meshview.Change) {
			select {
			case viewed <- struct{}{}:
			default: // there was one before
			}
		})
	})
	f.Cleanup(func() {
		cancel()
		running.Wait()
		if err := state.Close(); err != nil {
			f.Error(err)
		}
	})
	<-viewed
	if err := authority.Ensure(f.Context(), "default", 0); err != nil {
		f.Fatal(err)
	}
	s, err := New(Options{
		Authority: authority, Tokens: fuzzTokens{}, Storage: state, View: builder.View, Observe: builder.Observe,
		joins:     join.Limits{Rate: 1e9, Burst: 1e9, TokenChecks: 1, TokenTimeout: time.Minute},
		Bootstrap: func(*meshview.Proxy, join.Sidecar) ([]byte, error) { return []byte("{}"), nil },
	})
	if err != nil {
		f.Fatal(err)
	}
	return s
}

func fuzzEncoded(f *testing.F, m proto.Message) []byte {
	f.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return data
}

// FuzzJoin asks to join without a certificate. No request causes a panic or an internal error, and only one with the token is granted.
func FuzzJoin(f *testing.F) {
	s := fuzzServer(f)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ca.NewKey())
	if err != nil {
		f.Fatal(err)
	}
	good := &agentv1.JoinRequest{Mesh: "default", Name: "web-1", Token: "good", Csr: csr, ControlPlaneAddress: "cp:5678"}
	f.Add(fuzzEncoded(f, good))
	for _, bend := range []func(r *agentv1.JoinRequest){
		func(r *agentv1.JoinRequest) { r.Token = "bad" },
		func(r *agentv1.JoinRequest) { r.Name = "web-2" },
		func(r *agentv1.JoinRequest) { r.Csr = []byte{0x30, 0x82} },
		func(r *agentv1.JoinRequest) { r.ControlPlaneAddress = "[::1%x]:1" },
		func(r *agentv1.JoinRequest) { r.Version = &agentv1.Version{Sonde: "1", Envoy: "1.40.0"} },
	} {
		r := proto.CloneOf(good)
		bend(r)
		f.Add(fuzzEncoded(f, r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &agentv1.JoinRequest{}
		if proto.Unmarshal(data, r) != nil {
			return
		}
		response, err := s.Join(t.Context(), r)
		if code := status.Code(err); code == codes.Internal || code == codes.Unknown {
			t.Fatalf("Join() = %v", err)
		}
		if err == nil && (r.GetToken() != "good" || r.GetMesh() != "default" || r.GetName() != "web-1" || len(response.GetIdentity().GetCertificateChain()) == 0) {
			t.Fatalf("Join(%v) = %v", r, response)
		}
	})
}
