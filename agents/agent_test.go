package agents_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// agent replaces sonde-dp. It only stores the messages that it receives; obey follows one.
type agent struct {
	h     *harness
	name  string
	token string
	envoy *observed.Listeners // the listeners of its Envoy after it has joined; nil for none
	// features and instance of its Hello.
	features []string
	instance string
	version  *agentv1.Version // in its JoinRequest

	key       *ecdsa.PrivateKey
	leaf      *x509.Certificate
	bundle    *agentv1.Bundle
	bootstrap string
	// trusted are the CAs with which the agent verifies the control plane, in PEM: the initial CAs or, with the feature
	// "serving-ca", the CAs that it received last.
	trusted   []byte
	servingCA *agentv1.Bundle

	conn   *grpc.ClientConn
	stream agentv1.AgentService_SessionClient
	inbox  chan *agentv1.ControlMessage
	end    chan error
	cancel context.CancelFunc
	// inbounds, outbounds, probes, serviceProbes and drains have the received messages of these types; inbox has the
	// others.
	inbounds      chan *agentv1.Inbounds
	outbounds     chan *agentv1.Outbounds
	probes        chan *agentv1.Probes
	serviceProbes chan *agentv1.ServiceProbes
	drains        chan *agentv1.DrainState
}

func (h *harness) agent(name string) *agent {
	h.t.Helper()
	return &agent{
		h: h, name: name, token: h.token(identity.Subject{Mesh: "default", Dataplane: name, Path: "/workload/web"}, time.Hour),
		features: []string{"a", "queries", "service-probes"}, trusted: h.serving.CA(),
		envoy: &observed.Listeners{Accepted: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:8080")}},
	}
}

// dial connects with the current leaf, or without a certificate.
func (a *agent) dial() *grpc.ClientConn {
	a.h.t.Helper()
	roots := x509.NewCertPool()
	if a.trusted == nil {
		a.trusted = a.h.serving.CA()
	}
	roots.AppendCertsFromPEM(a.trusted)
	config := &tls.Config{RootCAs: roots, ServerName: mesh.ServingName, Time: a.h.now}
	if a.leaf != nil {
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{a.leaf.Raw}, PrivateKey: a.key}}
	}
	conn, err := grpc.NewClient("passthrough:///"+planeAddress, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(a.h.dial))
	if err != nil {
		a.h.t.Fatal(err)
	}
	return conn
}

func csr(t testing.TB) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

func (a *agent) join() error { return a.joinAs("") }

func (a *agent) mustJoin() {
	a.h.t.Helper()
	if err := a.join(); err != nil {
		a.h.t.Fatal(err)
	}
}

// joinAs joins with the name of a process.
func (a *agent) joinAs(instance string) error {
	key, request := csr(a.h.t)
	joining := *a
	joining.leaf = nil
	conn := joining.dial()
	defer func() { _ = conn.Close() }()
	response, err := agentv1.NewAgentServiceClient(conn).Join(wait.Context(a.h.t),
		&agentv1.JoinRequest{Mesh: "default", Name: a.name, Token: a.token, Csr: request, ControlPlaneAddress: "cp:5678", Instance: instance, Version: a.version})
	if err != nil {
		return err
	}
	a.put(key, response.GetIdentity())
	a.bootstrap = string(response.GetBootstrap())
	if a.envoy != nil {
		a.h.server.ObserveListeners(mesh.MakeID("default", a.name), *a.envoy)
	}
	return nil
}

// joined returns an agent with a session.
func (h *harness) joined(name string) *agent {
	h.t.Helper()
	a := h.agent(name)
	a.mustJoin()
	a.connect(false)
	return a
}

func (a *agent) renew() error {
	key, request := csr(a.h.t)
	conn := a.dial()
	defer func() { _ = conn.Close() }()
	response, err := agentv1.NewAgentServiceClient(conn).Renew(wait.Context(a.h.t), &agentv1.RenewRequest{Csr: request})
	if err != nil {
		return err
	}
	a.put(key, response.GetIdentity())
	return nil
}

func (a *agent) put(key *ecdsa.PrivateKey, id *agentv1.Identity) {
	a.h.t.Helper()
	leaf, err := x509.ParseCertificate(id.GetCertificateChain()[0])
	if err != nil {
		a.h.t.Fatal(err)
	}
	a.key, a.leaf, a.bundle = key, leaf, id.GetBundle()
}

func (a *agent) inUse() *agentv1.InUse {
	if a.leaf == nil {
		return nil
	}
	return &agentv1.InUse{
		BundleId: a.bundle.GetId(), LeafSerial: a.leaf.SerialNumber.Text(16), ServingCaId: a.servingCA.GetId(), ServingCaEpoch: a.servingCA.GetEpoch(),
	}
}

// open starts a session without sending anything.
func (a *agent) open() {
	a.h.t.Helper()
	a.conn = a.dial()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := agentv1.NewAgentServiceClient(a.conn).Session(ctx)
	if err != nil {
		a.h.t.Fatal(err)
	}
	a.stream, a.cancel = stream, cancel
	inbox, inbounds, end := make(chan *agentv1.ControlMessage, 100), make(chan *agentv1.Inbounds, 100), make(chan error, 1)
	outbounds := make(chan *agentv1.Outbounds, 100)
	probes, drains := make(chan *agentv1.Probes, 100), make(chan *agentv1.DrainState, 100)
	serviceProbes := make(chan *agentv1.ServiceProbes, 100)
	a.inbox, a.inbounds, a.outbounds, a.probes, a.serviceProbes, a.drains, a.end = inbox, inbounds, outbounds, probes, serviceProbes, drains, end
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				end <- err
				close(inbox)
				return
			}
			switch {
			case m.GetInbounds() != nil:
				inbounds <- m.GetInbounds()
			case m.GetOutbounds() != nil:
				outbounds <- m.GetOutbounds()
			case m.GetProbes() != nil:
				probes <- m.GetProbes()
			case m.GetServiceProbes() != nil:
				serviceProbes <- m.GetServiceProbes()
			case m.GetDrainState() != nil:
				drains <- m.GetDrainState()
			default:
				inbox <- m
			}
		}
	}()
	a.h.t.Cleanup(a.leave)
}

// leave aborts the session, as a killed agent does. The control plane notices at once.
func (a *agent) leave() {
	if a.conn == nil {
		return
	}
	a.cancel()
	_ = a.conn.Close()
	for range a.inbox { // until the goroutine that reads the stream ends
	}
	a.conn = nil
	synctest.Wait()
}

// connect opens a session, says Hello and waits for Welcome.
func (a *agent) connect(draining bool) {
	a.h.t.Helper()
	a.open()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		Version: &agentv1.Version{Sonde: "0.1", Envoy: "1.40.0"}, Features: a.features, InUse: a.inUse(), Draining: draining, Instance: a.instance,
	}}})
	if m := a.receive(); m.GetWelcome().GetVersion().GetSonde() != "1.2.3" {
		a.h.t.Fatalf("the first message is %v, want Welcome of 1.2.3", m)
	}
}

func (a *agent) send(m *agentv1.AgentMessage) {
	a.h.t.Helper()
	if err := a.stream.Send(m); err != nil {
		a.h.t.Fatal(err)
	}
}

// next returns the next value of a channel, after all goroutines are idle.
func next[T any](a *agent, what string, from <-chan T) T {
	a.h.t.Helper()
	v := wait.Receive(a.h.t, what, from)
	synctest.Wait()
	return v
}

func (a *agent) receive() *agentv1.ControlMessage {
	a.h.t.Helper()
	m := next(a, "a message for "+a.name, a.inbox)
	if m == nil {
		a.h.t.Fatalf("session of %s ended: %v", a.name, a.ending())
	}
	return m
}

// wantNothing checks that the agent receives no message for a minute.
func (a *agent) wantNothing(why string) {
	a.h.t.Helper()
	time.Sleep(time.Minute)
	if len(a.inbox) > 0 {
		a.h.t.Errorf("%s got %v, want nothing: %s", a.name, <-a.inbox, why)
	}
}

// ending returns why the session ended.
func (a *agent) ending() error {
	a.h.t.Helper()
	err := next(a, "the end of the session of "+a.name, a.end)
	a.end <- err
	return err
}

func (a *agent) report() {
	a.h.t.Helper()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: a.inUse()}})
}

// obey follows the next message, and reports the result.
func (a *agent) obey() {
	a.h.t.Helper()
	m := a.receive()
	switch {
	case m.GetBundle() != nil:
		a.bundle = m.GetBundle()
	case m.GetServingCa() != nil:
		a.servingCA, a.trusted = m.GetServingCa(), nil
		for _, der := range a.servingCA.GetRoots() {
			a.trusted = append(a.trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
		}
	case m.GetRenewNow() != nil:
		if err := a.renew(); err != nil {
			a.h.t.Fatal(err)
		}
	default:
		a.h.t.Fatalf("%s got %v, want Bundle, ServingCA or RenewNow", a.name, m)
	}
	a.report()
}
