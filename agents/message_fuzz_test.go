package agents

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/agentstest"
	"github.com/sonde-mesh/sonde/meshview"
)

// fuzzTokens accepts one token.
type fuzzTokens struct{ subject identity.Subject }

func (k fuzzTokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	if token != "good" {
		return identity.Subject{}, errors.New("not a token")
	}
	return k.subject, nil
}

// fuzzServer returns a server with one Dataplane. It ends with the test.
func fuzzServer(f *testing.F) *Server {
	f.Helper()
	p := agentstest.New(f)
	s, err := New(Options{
		Authority: p.Authority, Tokens: fuzzTokens{p.Subject}, Storage: p.State, View: p.Builder.View, Observe: p.Builder.Observe,
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

// FuzzJoin calls Join without a certificate. No request causes a panic or an internal error, and only one with the
// token succeeds.
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
