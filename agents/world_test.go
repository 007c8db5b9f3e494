package agents_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// world is a control plane with real gRPC, TLS, state folder and view's builder; it can be stopped and started again.
type world struct {
	t     *testing.T
	state *store.State
	bend  func(*agents.Options)
	// ahead is how far the control plane's clock is ahead of the real one.
	ahead atomic.Int64

	authority *identity.Authority
	server    *agents.Server
	builder   *meshview.Builder
	registry  *prometheus.Registry
	address   string
	stop      func()

	mu       sync.Mutex
	observed []mesh.ID
}

func newWorld(t *testing.T, bend func(*agents.Options)) *world {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	w := &world{t: t, state: state, bend: bend}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

func (w *world) start() {
	w.t.Helper()
	w.registry = prometheus.NewRegistry()
	var err error
	w.authority, err = identity.New(identity.Options{Storage: w.state, Now: w.now, Registerer: w.registry})
	if err != nil {
		w.t.Fatal(err)
	}
	w.builder = meshview.NewBuilder(meshview.Options{TrustDomain: mesh.DefaultTrustDomain, Sources: []string{"test"}})
	o := agents.Options{
		Authority: w.authority, Storage: w.state, View: w.builder.View, Now: w.now, Version: "1.2.3", Registerer: w.registry,
		Bootstrap: func(_ *meshview.Mesh, p *meshview.Proxy, controlPlane string) ([]byte, error) {
			return []byte(p.ID() + " by " + controlPlane), nil
		},
		Observe: func(id mesh.ID, o mesh.Observation) {
			w.mu.Lock()
			w.observed = append(w.observed, id)
			w.mu.Unlock()
			w.builder.Observe(id, o)
		},
		Recheck: 20 * time.Millisecond, SilentAfter: time.Minute,
	}
	if w.bend != nil {
		w.bend(&o)
	}
	if w.server, err = agents.New(o); err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.address = listener.Addr().String()
	g := grpc.NewServer(w.authority.ServerOptions(identity.ConnLimits{})...)
	w.server.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = g.Serve(listener) })
	running.Go(func() { _ = w.builder.Run(ctx, func(meshview.Change) {}) })
	running.Go(func() { _ = w.server.Run(ctx) })
	w.stop = sync.OnceFunc(func() {
		cancel()
		g.Stop()
		running.Wait()
	})
}

func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// fill puts dataplanes of workload "web" into mesh "default", which is there too, and waits for the view.
func (w *world) fill(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.put(dataplane("default", name, "web"))
	}
	w.builder.Synced("test")
	w.eventually("the view has every dataplane", func() bool {
		for _, name := range names {
			if _, p := w.builder.View().Proxy("default/" + name); p == nil {
				return false
			}
		}
		return true
	})
}

func (w *world) put(o mesh.Object) {
	w.t.Helper()
	o.SetDefaults()
	if err := o.Validate(); err != nil {
		w.t.Fatal(err)
	}
	w.builder.Set("test", o)
}

func dataplane(meshName, name, workload string) *mesh.Dataplane {
	d := &mesh.Dataplane{}
	d.Mesh, d.Name = meshName, name
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagService: workload}}}
	return d
}

// eventually polls: what it waits for has no other sign.
func (w *world) eventually(what string, holds func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %s: %s", patience, what)
		}
		<-tick.C
	}
}

func (w *world) token(t identity.Token, life time.Duration) string {
	w.t.Helper()
	token, err := w.authority.IssueToken(t, life)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// metric sums the values of a metric, of those with that label value if it is not empty.
func (w *world) metric(name, label string) float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || len(m.GetLabel()) > 0 && m.GetLabel()[0].GetValue() == label {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// agent is what a test does in place of sonde-dp. It puts in place what it gets when the test says so.
type agent struct {
	w     *world
	name  string
	token string

	key       *ecdsa.PrivateKey
	leaf      *x509.Certificate
	bundle    *agentv1.Bundle
	bootstrap string

	conn   *grpc.ClientConn
	stream agentv1.AgentService_SessionClient
	inbox  chan *agentv1.ControlMessage
	end    chan error
	cancel context.CancelFunc
}

func (w *world) agent(name string) *agent {
	w.t.Helper()
	return &agent{w: w, name: name, token: w.token(identity.Token{Mesh: "default", Dataplane: name, Workload: "web"}, time.Hour)}
}

// dial connects with the leaf that is in place, or without.
func (a *agent) dial() *grpc.ClientConn {
	a.w.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.w.authority.ServingCA())
	config := &tls.Config{RootCAs: roots, ServerName: mesh.ServingName, Time: a.w.now}
	if a.leaf != nil {
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{a.leaf.Raw}, PrivateKey: a.key}}
	}
	conn, err := grpc.NewClient("passthrough:///"+a.w.address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		a.w.t.Fatal(err)
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

func (a *agent) join() error {
	key, request := csr(a.w.t)
	joining := *a
	joining.leaf = nil
	conn := joining.dial()
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(a.w.t.Context(), patience)
	defer cancel()
	response, err := agentv1.NewAgentServiceClient(conn).Join(ctx,
		&agentv1.JoinRequest{Mesh: "default", Name: a.name, Token: a.token, Csr: request, ControlPlaneAddress: "cp:5678"})
	if err != nil {
		return err
	}
	a.put(key, response.GetIdentity())
	a.bootstrap = string(response.GetBootstrap())
	return nil
}

func (a *agent) renew() error {
	key, request := csr(a.w.t)
	conn := a.dial()
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(a.w.t.Context(), patience)
	defer cancel()
	response, err := agentv1.NewAgentServiceClient(conn).Renew(ctx, &agentv1.RenewRequest{Csr: request})
	if err != nil {
		return err
	}
	a.put(key, response.GetIdentity())
	return nil
}

func (a *agent) put(key *ecdsa.PrivateKey, id *agentv1.Identity) {
	a.w.t.Helper()
	leaf, err := x509.ParseCertificate(id.GetCertificateChain()[0])
	if err != nil {
		a.w.t.Fatal(err)
	}
	a.key, a.leaf, a.bundle = key, leaf, id.GetBundle()
}

func (a *agent) inUse() *agentv1.InUse {
	if a.leaf == nil {
		return nil
	}
	return &agentv1.InUse{BundleId: a.bundle.GetId(), LeafSerial: a.leaf.SerialNumber.Text(16)}
}

// open starts a session without a word.
func (a *agent) open() {
	a.w.t.Helper()
	a.conn = a.dial()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := agentv1.NewAgentServiceClient(a.conn).Session(ctx)
	if err != nil {
		a.w.t.Fatal(err)
	}
	a.stream, a.cancel = stream, cancel
	inbox, end := make(chan *agentv1.ControlMessage, 100), make(chan error, 1)
	a.inbox, a.end = inbox, end
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				end <- err
				close(inbox)
				return
			}
			inbox <- m
		}
	}()
	a.w.t.Cleanup(a.leave)
}

// leave breaks the session off, as a dead agent does.
func (a *agent) leave() {
	if a.conn == nil {
		return
	}
	a.cancel()
	_ = a.conn.Close()
	for range a.inbox { // until its reader is done
	}
	a.conn = nil
}

// connect opens a session, says Hello and waits for Welcome.
func (a *agent) connect(draining bool) {
	a.w.t.Helper()
	a.open()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		Version: &agentv1.Version{Sonde: "0.1", Envoy: "1.40.0"}, Features: []string{"a"}, InUse: a.inUse(), Draining: draining,
	}}})
	if m := a.receive(); m.GetWelcome().GetVersion().GetSonde() != "1.2.3" {
		a.w.t.Fatalf("the first message is %v, want Welcome of 1.2.3", m)
	}
}

func (a *agent) send(m *agentv1.AgentMessage) {
	a.w.t.Helper()
	if err := a.stream.Send(m); err != nil {
		a.w.t.Fatal(err)
	}
}

func (a *agent) receive() *agentv1.ControlMessage {
	a.w.t.Helper()
	select {
	case m, ok := <-a.inbox:
		if !ok {
			err := <-a.end
			a.end <- err
			a.w.t.Fatalf("session of %s ended: %v", a.name, err)
		}
		return m
	case <-time.After(patience):
		a.w.t.Fatalf("no message for %s", a.name)
	}
	return nil
}

// ending is why the session ended.
func (a *agent) ending() error {
	a.w.t.Helper()
	select {
	case err := <-a.end:
		a.end <- err
		return err
	case <-time.After(patience):
		a.w.t.Fatalf("the session of %s goes on", a.name)
	}
	return errors.New("unreachable")
}

func (a *agent) report() {
	a.w.t.Helper()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: a.inUse()}})
}

// obey does what the next message says, and reports it.
func (a *agent) obey() {
	a.w.t.Helper()
	m := a.receive()
	switch {
	case m.GetBundle() != nil:
		a.bundle = m.GetBundle()
	case m.GetRenewNow() != nil:
		if err := a.renew(); err != nil {
			a.w.t.Fatal(err)
		}
	default:
		a.w.t.Fatalf("%s got %v, want Bundle or RenewNow", a.name, m)
	}
	a.report()
}
