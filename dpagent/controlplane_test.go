package dpagent_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
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

// authority signs certificates with a key of its own.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial(t), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

// sign makes a leaf of that life, with which a proxy or a server can do all that it must.
func (a *authority) sign(t testing.TB, public any, life time.Duration, dnsName, spiffeID string) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(t), DNSNames: []string{dnsName},
		NotBefore: time.Now().Add(-time.Second), NotAfter: time.Now().Add(life - time.Second),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if spiffeID != "" {
		id, err := url.Parse(spiffeID)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = []*url.URL{id}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func bundleOf(cas ...*authority) *agentv1.Bundle {
	b := &agentv1.Bundle{}
	hash := sha256.New()
	for _, ca := range cas {
		b.Roots = append(b.Roots, ca.cert.Raw)
		hash.Write(ca.cert.Raw)
	}
	b.Id = hex.EncodeToString(hash.Sum(nil)[:8])
	return b
}

// controlPlane is a small one of real TLS and real signatures, which tests steer.
type controlPlane struct {
	agentv1.UnimplementedAgentServiceServer

	t       testing.TB
	serving *authority
	address string
	caFile  string

	mu        sync.Mutex
	server    *grpc.Server
	ca        *authority
	trusted   []*authority
	life      time.Duration
	token     string
	bootstrap []byte
	features  []string
	spoil     func(*agentv1.Identity) // what goes out, if set
	renewals  int
	joins     int
	joined    []string                     // features of the last join
	send      chan *agentv1.ControlMessage // to the session

	got chan *agentv1.AgentMessage // from all sessions
	ads atomic.Int64               // streams of Envoy
}

func newControlPlane(t testing.TB, bootstrap []byte) *controlPlane {
	t.Helper()
	ca := newAuthority(t)
	cp := &controlPlane{
		t: t, serving: newAuthority(t), ca: ca, trusted: []*authority{ca}, life: time.Hour, token: "good",
		bootstrap: bootstrap, caFile: filepath.Join(t.TempDir(), "serving-ca.crt"),
		send: make(chan *agentv1.ControlMessage, 16), got: make(chan *agentv1.AgentMessage, 64),
	}
	cp.give(cp.serving)
	cp.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(freePort(t)))
	t.Cleanup(cp.stop)
	return cp
}

// give writes the file of the control plane's CAs that the agent is given.
func (cp *controlPlane) give(cas ...*authority) {
	cp.t.Helper()
	var file []byte
	for _, ca := range cas {
		file = append(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})...)
	}
	if err := os.WriteFile(cp.caFile, file, 0o600); err != nil {
		cp.t.Fatal(err)
	}
}

// start serves on the address that the control plane had from the beginning.
func (cp *controlPlane) start() {
	cp.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		cp.t.Fatal(err)
	}
	leaf := cp.serving.sign(cp.t, key.Public(), time.Hour, mesh.ServingName, "")
	l, err := net.Listen("tcp", cp.address)
	if err != nil {
		cp.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}},
		ClientAuth:   tls.RequestClientCert,
	})), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error { // only Envoy calls another service: ADS
		cp.ads.Add(1)
		<-stream.Context().Done()
		return stream.Context().Err()
	}))
	agentv1.RegisterAgentServiceServer(server, cp)
	cp.mu.Lock()
	cp.server = server
	cp.mu.Unlock()
	served := make(chan struct{})
	cp.t.Cleanup(func() { <-served })
	cp.t.Cleanup(server.Stop)
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
}

// stop kills it: connections break.
func (cp *controlPlane) stop() {
	cp.mu.Lock()
	server := cp.server
	cp.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

func (cp *controlPlane) set(change func()) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	change()
}

func (cp *controlPlane) issue(csr []byte, name, meshName string) (*agentv1.Identity, error) {
	request, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := request.CheckSignature(); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	leaf := cp.ca.sign(cp.t, request.PublicKey, cp.life, mesh.ProxyDNSName(meshName, name),
		"spiffe://"+mesh.TrustDomain(meshName, "test")+"/workload/web")
	id := &agentv1.Identity{CertificateChain: [][]byte{leaf}, Bundle: bundleOf(cp.trusted...)}
	if cp.spoil != nil {
		cp.spoil(id)
	}
	return id, nil
}

func (cp *controlPlane) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	if r.GetToken() == "" {
		if _, err := cp.caller(ctx); err != nil {
			return nil, err
		}
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.joins++
	cp.joined = r.GetFeatures()
	if r.GetToken() != "" && r.GetToken() != cp.token {
		return nil, status.Error(codes.Unauthenticated, "bad token")
	}
	if n := r.GetMemoryBytes(); n < 16<<20 {
		return nil, status.Errorf(codes.InvalidArgument, "memory_bytes: %d: the agent must say what it has", n)
	}
	id, err := cp.issue(r.GetCsr(), r.GetName(), r.GetMesh())
	if err != nil {
		return nil, err
	}
	return &agentv1.JoinResponse{Identity: id, Bootstrap: cp.bootstrap}, nil
}

// caller is the verified leaf of the connection.
func (cp *controlPlane) caller(ctx context.Context) (*x509.Certificate, error) {
	p, _ := peer.FromContext(ctx)
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.PeerCertificates) == 0 {
		return nil, status.Error(codes.Unauthenticated, "no certificate")
	}
	leaf := info.State.PeerCertificates[0]
	roots := x509.NewCertPool()
	cp.mu.Lock()
	for _, ca := range cp.trusted {
		roots.AddCert(ca.cert)
	}
	cp.mu.Unlock()
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return leaf, nil
}

func (cp *controlPlane) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	if _, err := cp.caller(ctx); err != nil {
		return nil, err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.renewals++
	id, err := cp.issue(r.GetCsr(), "web-1", "default")
	if err != nil {
		return nil, err
	}
	return &agentv1.RenewResponse{Identity: id}, nil
}

func (cp *controlPlane) Session(stream agentv1.AgentService_SessionServer) error {
	if _, err := cp.caller(stream.Context()); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			if m.GetDraining() != nil {
				cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainRecorded{DrainRecorded: &agentv1.DrainRecorded{}}}
			}
			select {
			case cp.got <- m:
			case <-stream.Context().Done(): // nobody expects more
				received <- stream.Context().Err()
				return
			}
		}
	}()
	cp.mu.Lock()
	welcome := &agentv1.Welcome{Features: cp.features}
	cp.mu.Unlock()
	if err := stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Welcome{Welcome: welcome}}); err != nil {
		return err
	}
	for {
		select {
		case err := <-received:
			return err
		case m := <-cp.send:
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// expect returns the first message that is wanted. After the control plane was away, the next session is up to 10 s later.
func (cp *controlPlane) expect(wanted func(*agentv1.AgentMessage) bool) *agentv1.AgentMessage {
	cp.t.Helper()
	timeout := time.NewTimer(30 * time.Second)
	defer timeout.Stop()
	for {
		select {
		case m := <-cp.got:
			if wanted(m) {
				return m
			}
		case <-timeout.C:
			cp.t.Fatal("no such message of the agent within 30s")
		}
	}
}
