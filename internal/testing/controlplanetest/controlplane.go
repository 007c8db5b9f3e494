package controlplanetest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Options of a ControlPlane. All are required.
type Options struct {
	// Listen opens Address, and reopens it after each Stop.
	Listen  func(ctx context.Context, network, address string) (net.Listener, error)
	Address string
	// Bootstrap is the bootstrap that agents get for their Envoy.
	Bootstrap []byte
}

// State configures the responses of a ControlPlane.
type State struct {
	// Serving is the CA of the control plane's own certificate.
	Serving *Authority
	// CA signs certificates of proxies, valid for Life. Trusted CAs are accepted.
	CA      *Authority
	Trusted []*Authority
	Life    time.Duration
	// Token to join with.
	Token     string
	Bootstrap []byte
	// Features are announced in each new session.
	Features []string
	// Spoil changes each issued identity. Default: none.
	Spoil func(*agentv1.Identity)
	// Joined are the features of the agent that joined last.
	Joined []string
}

// ControlPlane serves agents. The caller must call Start.
type ControlPlane struct {
	agentv1.UnimplementedAgentServiceServer

	// Address of the control plane, host:port.
	Address string
	// CAFile has the CAs that agents are configured with.
	CAFile string
	// Send has the messages to send on the open session.
	Send chan *agentv1.ControlMessage

	t      testing.TB
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	got    chan *agentv1.AgentMessage // messages of all sessions

	mu    sync.Mutex
	state State
	stop  func()
}

// New returns a control plane that does not serve yet. It stops at the end of the test.
func New(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	ca := NewAuthority(t)
	cp := &ControlPlane{
		t: t, listen: o.Listen, Address: o.Address, CAFile: filepath.Join(t.TempDir(), "serving-ca.crt"),
		state: State{Serving: NewAuthority(t), CA: ca, Trusted: []*Authority{ca}, Life: time.Hour,
			Token: "good", Bootstrap: o.Bootstrap},
		Send: make(chan *agentv1.ControlMessage, 16), got: make(chan *agentv1.AgentMessage, 64), stop: func() {},
	}
	cp.Give(cp.state.Serving)
	t.Cleanup(cp.Stop)
	return cp
}

// Start starts to serve.
func (cp *ControlPlane) Start() {
	cp.t.Helper()
	key := NewKey(cp.t)
	l, err := cp.listen(cp.t.Context(), "tcp", cp.Address)
	if err != nil {
		cp.t.Fatal(err)
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	leaf := cp.state.Serving.Sign(cp.t, key.Public(), 24*time.Hour, mesh.ServingName, "")
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}},
		ClientAuth:   tls.RequestClientCert,
	})))
	agentv1.RegisterAgentServiceServer(server, cp)
	served := make(chan struct{})
	cp.stop = func() {
		server.Stop()
		<-served
	}
	go func() {
		defer close(served)
		_ = server.Serve(l) // returns an error after Stop
	}()
}

// Stop kills the control plane: connections break.
func (cp *ControlPlane) Stop() {
	cp.mu.Lock()
	stop := cp.stop
	cp.mu.Unlock()
	stop()
}

// Restart kills the control plane and starts it again.
func (cp *ControlPlane) Restart() {
	cp.t.Helper()
	cp.Stop()
	cp.Start()
}

// Set changes the state for future responses.
func (cp *ControlPlane) Set(change func(*State)) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	change(&cp.state)
}

// State returns the current state.
func (cp *ControlPlane) State() State {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.state
}

// issue returns an identity; the caller holds mu.
func (cp *ControlPlane) issue(csr []byte, name, meshName string) (*agentv1.Identity, error) {
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := request.CheckSignature(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	leaf := cp.state.CA.Sign(cp.t, request.PublicKey, cp.state.Life, mesh.ProxyDNSName(meshName, name),
		"spiffe://"+mesh.TrustDomain(meshName, "test")+"/workload/web")
	id := &agentv1.Identity{CertificateChain: [][]byte{leaf}, Bundle: BundleOf(cp.state.Trusted...)}
	if cp.state.Spoil != nil {
		cp.state.Spoil(id)
	}
	return id, nil
}

// Join implements agentv1.AgentServiceServer.
func (cp *ControlPlane) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	if r.GetToken() == "" {
		if err := cp.authenticate(ctx); err != nil {
			return nil, err
		}
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.state.Joined = r.GetFeatures()
	if r.GetToken() != "" && r.GetToken() != cp.state.Token {
		return nil, status.Error(codes.Unauthenticated, "bad token")
	}
	if n := r.GetMemoryBytes(); n < 16<<20 {
		return nil, status.Errorf(codes.InvalidArgument, "memory_bytes: %d: the agent must report its memory", n)
	}
	id, err := cp.issue(r.GetCsr(), r.GetName(), r.GetMesh())
	if err != nil {
		return nil, err
	}
	return &agentv1.JoinResponse{Identity: id, Bootstrap: cp.state.Bootstrap}, nil
}

// authenticate verifies the certificate of a caller.
func (cp *ControlPlane) authenticate(ctx context.Context) error {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return status.Error(codes.Unauthenticated, "no certificate")
	}
	roots := x509.NewCertPool()
	for _, ca := range cp.State().Trusted {
		roots.AddCert(ca.Cert)
	}
	if _, err := info.State.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}

// Renew implements agentv1.AgentServiceServer.
func (cp *ControlPlane) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	if err := cp.authenticate(ctx); err != nil {
		return nil, err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	id, err := cp.issue(r.GetCsr(), "web-1", mesh.DefaultMesh)
	if err != nil {
		return nil, err
	}
	return &agentv1.RenewResponse{Identity: id}, nil
}
