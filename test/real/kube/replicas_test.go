package kube

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// startReplicas starts control planes as peers, which find each other through EndpointSlices.
func startReplicas(t *testing.T, names ...string) []*plane {
	t.Helper()
	client := newClient(t)
	planes := make([]*plane, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			planes[i] = startPlane(t, name, func(o *controlplane.Options) { o.BindAddress = controlplane.DefaultBindAddress })
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	introduce(t, client, names, planes)
	return planes
}

// awaitCA waits until each replica has the CA of Mesh default, and so accepts certificates that another replica
// signed.
func awaitCA(t *testing.T, planes []*plane) {
	t.Helper()
	for _, p := range planes {
		p.says(t, "/metrics", "\nsonde_bundle_epoch{mesh=\"default\"} ")
	}
}

// introduce makes control planes peers.
func introduce(t testing.TB, client kubernetes.Interface, names []string, planes []*plane) {
	t.Helper()
	writePeers(t, client, names, planes)
	for i, p := range planes {
		must.Poll(t, names[i]+" to hear the others", func(ctx context.Context) error {
			text, err := p.get(ctx, "/readyz?verbose")
			if err == nil && !strings.Contains("\n"+text, "\n[+]peers ok") {
				err = errors.New(text)
			}
			return err
		})
	}
}

// writePeers writes the EndpointSlices of the headless Service: one per replica, because each replica has other ports
// here.
func writePeers(t testing.TB, client kubernetes.Interface, names []string, planes []*plane) {
	t.Helper()
	for i, p := range planes {
		slice := apiserver.PeerSlice(t, names[i], int32(portOf(t, p.peers)))
		slicesOf := client.DiscoveryV1().EndpointSlices(systemNamespace)
		if _, err := slicesOf.Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = slicesOf.Delete(context.Background(), slice.Name, metav1.DeleteOptions{}) })
	}
}

// machine is a virtual machine with an agent and an Envoy, as control planes see it.
type machine struct {
	t       testing.TB
	name    string // of the Dataplane
	mesh    string // "" means default
	process string
	started time.Time
	key     *ecdsa.PrivateKey
	roots   *x509.CertPool
	token   string
	leaf    *x509.Certificate
	bundle  *agentv1.Bundle
	count   int64
	// renews is the replica where the machine renews its certificate, or nil to keep it; renewed
	// counts renewals.
	renews  *plane
	renewed int
}

// newMachine writes a Dataplane of a service, and creates a token for it. Its address is 10.0.0.N.
func newMachine(t *testing.T, p *plane, name, service string, n int, more string) *machine {
	t.Helper()
	client := newClient(t)
	apply(t, "outside", "dataplanes", fmt.Sprintf(`{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: %[1]s},
 spec: {networking: {address: 10.0.0.%[2]d, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: %[4]s}%[3]s}], outbound: [{port: 10001, tags: {kuma.io/service: web}}]}}}`, name, n, more, service))
	t.Cleanup(func() {
		_, _ = cluster.Do(context.Background(), "DELETE", sondePath("outside", "dataplanes")+"/"+name, "", "")
	})
	m := &machine{t: t, name: name + ".outside", process: rand.Text(), started: time.Now(), key: ca.NewKey(), roots: x509.NewCertPool()}
	m.roots.AppendCertsFromPEM(secret(t, client, "sonde-serving-ca.crt"))
	admin, ctx := p.adminClient(t, client)
	r, err := admin.GenerateDataplaneToken(ctx, &adminv1.GenerateDataplaneTokenRequest{Mesh: "default", Name: m.name, Workload: service, ValidFor: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	m.token = r.GetToken()
	return m
}

func (m *machine) id() mesh.ID { return mesh.MakeID(m.meshName(), m.name) }

func (m *machine) meshName() string { return cmp.Or(m.mesh, "default") }

// tls returns the TLS configuration of a connection, with the certificate if the machine has one.
func (m *machine) tls() *tls.Config {
	config := &tls.Config{RootCAs: m.roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if m.leaf != nil {
		config.Certificates = []tls.Certificate{{Certificate: [][]byte{m.leaf.Raw}, PrivateKey: m.key, Leaf: m.leaf}}
	}
	return config
}

// dial connects to the agents' port of a replica.
func (m *machine) dial(p *plane) *grpc.ClientConn {
	m.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.agents, grpc.WithTransportCredentials(credentials.NewTLS(m.tls())))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// join makes the machine join at a replica.
func (m *machine) join(p *plane) {
	m.t.Helper()
	conn := m.dial(p)
	must.Poll(m.t, m.name+" to join", func(ctx context.Context) error { return m.joinOver(ctx, conn) })
}

// joinOver tries to join once.
func (m *machine) joinOver(ctx context.Context, conn *grpc.ClientConn) error {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, m.key)
	if err != nil {
		return err
	}
	r, err := agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
		Mesh: m.meshName(), Name: m.name, Token: m.token, Csr: csr, ControlPlaneAddress: "127.0.0.1:5678", Instance: m.process,
	})
	if err != nil {
		return err
	}
	m.bundle = r.GetIdentity().GetBundle()
	m.leaf, err = x509.ParseCertificate(r.GetIdentity().GetCertificateChain()[0])
	return err
}

// inUse returns the certificate and CAs that the agent reports as in use.
func (m *machine) inUse() *agentv1.InUse {
	use := &agentv1.InUse{
		BundleId: m.bundle.GetId(), BundleEpoch: m.bundle.GetEpoch(), LeafSerial: m.leaf.SerialNumber.Text(16), LeafNotAfter: timestamppb.New(m.leaf.NotAfter),
	}
	for _, root := range m.bundle.GetRoots() {
		if c, err := x509.ParseCertificate(root); err == nil && m.leaf.CheckSignatureFrom(c) == nil {
			use.LeafCa = ca.Fingerprint(root)
		}
	}
	return use
}

// take installs a bundle, which must not be older than the previous one.
func (m *machine) take(b *agentv1.Bundle) {
	if b.GetEpoch() < m.bundle.GetEpoch() {
		m.t.Errorf("%s receives a bundle of epoch %d, and has one of epoch %d", m.name, b.GetEpoch(), m.bundle.GetEpoch())
	}
	m.bundle = b
}

// renew gets another certificate.
func (m *machine) renew() {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, m.key)
	if err != nil {
		m.t.Error(err)
		return
	}
	r, err := agentv1.NewAgentServiceClient(m.dial(m.renews)).Renew(context.WithoutCancel(m.t.Context()), &agentv1.RenewRequest{Csr: csr})
	if err != nil {
		m.t.Errorf("%s has got no certificate: %v", m.name, err)
		return
	}
	m.take(r.GetIdentity().GetBundle())
	if m.leaf, err = x509.ParseCertificate(r.GetIdentity().GetCertificateChain()[0]); err != nil {
		m.t.Error(err)
	}
	m.renewed++
}

// hello returns the first message of the next session.
func (m *machine) hello(draining bool) *agentv1.AgentMessage {
	m.count++
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		Version: &agentv1.Version{Sonde: "test"}, Instance: m.process, Session: &agentv1.SessionNumber{Started: timestamppb.New(m.started), Count: m.count},
		Features: []string{agentv1.FeaturePong, agentv1.FeatureQueries, agentv1.FeatureServiceProbes, agentv1.FeatureEndpoints}, Draining: draining,
		InUse: m.inUse(),
	}}}
}

// answer handles a message, and returns the response, or nil if the message needs none.
func (m *machine) answer(r *agentv1.ControlMessage) *agentv1.AgentMessage {
	switch {
	case r.GetPing() != nil:
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}}
	case r.GetBundle() != nil:
		m.take(r.GetBundle())
	case r.GetRenewNow() != nil && m.renews != nil:
		m.renew()
	default:
		return nil
	}
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_InUse{InUse: m.inUse()}}
}

// session is an open session of a machine.
type session struct {
	m      *machine
	stream agentv1.AgentService_SessionClient
	end    func()

	mu   sync.Mutex
	got  []*agentv1.ControlMessage
	err  error
	done bool
}

// open opens a session with a replica, and answers pings.
func (m *machine) open(p *plane, draining bool) *session {
	m.t.Helper()
	ctx, cancel := detached(m.t)
	m.t.Cleanup(cancel)
	stream, err := agentv1.NewAgentServiceClient(m.dial(p)).Session(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	s := &session{m: m, stream: stream, end: cancel}
	if err := stream.Send(m.hello(draining)); err != nil && !errors.Is(err, io.EOF) { // if the session is refused already, the reader gets the reason
		m.t.Fatal(err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			s.mu.Lock()
			if err != nil {
				s.err, s.done = err, true
				s.mu.Unlock()
				return
			}
			s.got = append(s.got, r)
			s.mu.Unlock()
			if answer := m.answer(r); answer != nil {
				_ = stream.Send(answer)
			}
		}
	}()
	return s
}

func (s *session) send(m *agentv1.AgentMessage) {
	s.m.t.Helper()
	if err := s.stream.Send(m); err != nil {
		s.m.t.Fatal(err)
	}
}

// until waits until the messages that the session received satisfy holds.
func (s *session) until(what string, holds func(got []*agentv1.ControlMessage) bool) {
	s.m.t.Helper()
	must.Poll(s.m.t, s.m.name+": "+what, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if holds(s.got) {
			return nil
		}
		return fmt.Errorf("got %v, %w", s.got, s.err)
	})
}

// acceptedInbounds reports whether the newest Inbounds message says that Envoy has accepted all
// listeners.
func acceptedInbounds(got []*agentv1.ControlMessage) bool {
	for _, m := range slices.Backward(got) {
		if in := m.GetInbounds(); in != nil {
			return in.GetAccepted()
		}
	}
	return false
}

// endsWith waits until the session has ended with that code.
func (s *session) endsWith(code codes.Code) {
	s.m.t.Helper()
	must.Poll(s.m.t, s.m.name+": the end of its session", func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.done {
			return errors.New("the session is open")
		}
		if status.Code(s.err) != code {
			return fmt.Errorf("the session has ended with %w", s.err)
		}
		return nil
	})
}

// envoy is the simulated Envoy of a machine, with a stream to a replica.
type envoy struct {
	t     testing.TB
	end   func()
	ended chan struct{} // closed with its stream

	mu  sync.Mutex
	sim *envoysim.Envoy
	web []string // the endpoints of service web after each change
}

func (m *machine) connect(p *plane) *envoy {
	m.t.Helper()
	return m.connectRefusing(p, envoysim.Refusals{})
}

// connectRefusing is connect with an Envoy that refuses resources.
func (m *machine) connectRefusing(p *plane, refusals envoysim.Refusals) *envoy {
	m.t.Helper()
	e := &envoy{t: m.t, ended: make(chan struct{}), sim: envoysim.New(envoysim.Options{Node: m.id(), Protocol: envoysim.Delta, DrainTime: time.Minute})}
	conn := m.dial(p)
	ctx, cancel := detached(m.t)
	wire, err := envoysim.OpenWire(ctx, envoysim.Delta, conn)
	if err != nil {
		m.t.Fatal(err)
	}
	e.end = sync.OnceFunc(func() {
		cancel()
		_ = conn.Close()
		<-e.ended
	})
	m.t.Cleanup(e.end)
	e.sim.Connect(func(r *envoysim.Request) { _ = wire.Send(r) }) // the reader gets the reason why the stream has ended
	go func() {
		defer close(e.ended)
		for {
			r, err := wire.Recv()
			if err != nil {
				return
			}
			e.mu.Lock()
			e.sim.Take(r, refusals)
			e.sim.Settle()
			if now := e.addressesOf("web"); len(e.web) == 0 && now != "" || len(e.web) > 0 && now != e.web[len(e.web)-1] {
				e.web = append(e.web, now)
			}
			e.mu.Unlock()
		}
	}()
	return e
}

// ends waits until the control plane closes the stream.
func (e *envoy) ends() {
	e.t.Helper()
	must.Poll(e.t, "the end of the stream", func(context.Context) error {
		select {
		case <-e.ended:
			return nil
		default:
			return errors.New("the stream is open")
		}
	})
}

// addressesOf returns Envoy's endpoints of a service; the caller holds mu.
func (e *envoy) addressesOf(service string) string {
	r := e.sim.Get(resource.Name{Type: resource.Endpoint, Name: service})
	if r == nil {
		return ""
	}
	m := &endpointv3.ClusterLoadAssignment{}
	if err := r.Body.UnmarshalTo(m); err != nil {
		return err.Error()
	}
	var got []string
	for _, locality := range m.GetEndpoints() {
		for _, lb := range locality.GetLbEndpoints() {
			got = append(got, lb.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	slices.Sort(got)
	return strings.Join(got, " ")
}

// had waits until Envoy has had exactly these endpoints of service web, one after the other.
func (e *envoy) had(want ...string) {
	e.t.Helper()
	must.Poll(e.t, "endpoints of web", func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !slices.Equal(e.web, want) {
			return fmt.Errorf("the endpoints were %q, want %q", e.web, want)
		}
		return nil
	})
}

// TestAgentAndEnvoyOnDifferentReplicas has an agent whose calls, session and Envoy use three different replicas.
func TestAgentAndEnvoyOnDifferentReplicas(t *testing.T) {
	deleteMeshes(t)
	namespace(t, newClient(t), "outside", nil)
	planes := startReplicas(t, "a", "b", "c")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	awaitCA(t, planes)
	m := newMachine(t, planes[0], "web", "web", 1, "")
	m.join(planes[0])
	s := m.open(planes[1], false)
	m.connect(planes[2])
	s.until("Envoy has accepted its listeners", acceptedInbounds)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, message := range s.got {
		if message.GetRenewNow() != nil || message.GetBundle() != nil {
			t.Errorf("a certificate of another replica is to be renewed: %v", s.got)
		}
	}
}

// TestEndpointsOfAnAgentElsewhere has proxies on one replica, which call a service whose agent has its session on
// another replica.
func TestEndpointsOfAnAgentElsewhere(t *testing.T) {
	deleteMeshes(t)
	namespace(t, newClient(t), "outside", nil)
	planes := startReplicas(t, "a", "b")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	web := newMachine(t, planes[0], "web", "web", 1, ", serviceProbe: {tcpSocket: {}}")
	caller := newMachine(t, planes[0], "caller", "caller", 3, "")
	caller.join(planes[1])
	caller.open(planes[1], false)
	seen := caller.connect(planes[1])

	web.join(planes[0])
	s := web.open(planes[0], false)
	web.connect(planes[0])
	s.until("it is asked for its application", func(got []*agentv1.ControlMessage) bool {
		return slices.ContainsFunc(got, func(m *agentv1.ControlMessage) bool { return len(m.GetServiceProbes().GetProbes()) == 1 })
	})
	report := func(s *session, ready bool) {
		s.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{Readiness: &agentv1.Readiness{
			Inbounds: []*agentv1.InboundReadiness{{Inbound: "10.0.0.1:80", Ready: ready, Reason: "connection refused"}},
		}}})
	}
	report(s, true)
	seen.had("10.0.0.1")
	s.until("others know that it is ready", func(got []*agentv1.ControlMessage) bool {
		for _, m := range slices.Backward(got) {
			if e := m.GetEndpoints(); e != nil {
				return e.GetReady()
			}
		}
		return false
	})
	report(s, false)
	seen.had("10.0.0.1", "")
	// After the agent has moved, its last report stays in effect until the next report.
	s.end()
	moved := web.open(planes[1], false)
	moved.until("it is asked for its application again", func(got []*agentv1.ControlMessage) bool {
		return slices.ContainsFunc(got, func(m *agentv1.ControlMessage) bool { return len(m.GetServiceProbes().GetProbes()) == 1 })
	})
	there := caller.connect(planes[0])
	report(moved, true)
	seen.had("10.0.0.1", "", "10.0.0.1")
	there.had("10.0.0.1")
	second := newMachine(t, planes[0], "web-2", "web", 2, "")
	second.join(planes[0])
	second.open(planes[0], false)
	second.connect(planes[1])
	seen.had("10.0.0.1", "", "10.0.0.1", "10.0.0.1 10.0.0.2")
	there.had("10.0.0.1", "10.0.0.1 10.0.0.2")
	moved.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}})
	seen.had("10.0.0.1", "", "10.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.2")
	there.had("10.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.2")
}

// TestNewestSessionWins has an agent that reconnects to another replica while its old session is open.
func TestNewestSessionWins(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "outside", nil)
	planes := startReplicas(t, "a", "b")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	awaitCA(t, planes)
	m := newMachine(t, planes[0], "web", "web", 1, "")
	m.join(planes[0])
	old := m.open(planes[0], false)
	replicaOf := func(p *plane, want string) {
		t.Helper()
		admin, ctx := p.adminClient(t, client)
		must.Poll(t, "the session at "+want, func(context.Context) error {
			r, err := admin.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: &adminv1.Filter{Mesh: "default", Name: m.name}})
			if err != nil {
				return err
			}
			for _, p := range r.GetProxies() {
				if p.GetAgent() != nil && p.GetAgent().GetReplica() == want && p.GetAgentState().GetPhase() == adminv1.AgentState_CONNECTED {
					return nil
				}
			}
			return fmt.Errorf("%v", r.GetProxies())
		})
	}
	replicaOf(planes[0], "a")
	replicaOf(planes[1], "a")
	m.open(planes[1], false)
	old.endsWith(codes.Aborted)
	replicaOf(planes[0], "b")
	replicaOf(planes[1], "b")

	second := newMachineOf(m)
	refused := second.open(planes[0], false)
	refused.endsWith(codes.AlreadyExists)
	replicaOf(planes[0], "b")
}

// newMachineOf returns a second process with the credentials of a machine.
func newMachineOf(m *machine) *machine {
	other := *m
	other.process, other.started, other.count = rand.Text(), time.Now(), 0
	return &other
}

// TestRotationOverReplicas rotates the CA of a mesh whose agents have sessions with different replicas, and renew at
// the other replica. The rotation starts at the follower.
func TestRotationOverReplicas(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "outside", nil)
	names := []string{"a", "b"}
	planes := startReplicas(t, names...)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	awaitCA(t, planes)
	var machines []*machine
	for i, p := range planes {
		other := planes[1-i]
		m := newMachine(t, p, names[i], names[i], i+1, "")
		m.join(other)
		m.renews = other
		m.open(p, false)
		machines = append(machines, m)
	}
	leads := ""
	must.Poll(t, "a leader", func(ctx context.Context) (err error) {
		leads, err = holder(ctx, client)
		return err
	})
	follows := planes[0]
	if leads == names[0] {
		follows = planes[1]
	}
	admin, ctx := follows.adminClient(t, client)
	// Other tests have left pods and Dataplanes, whose agents have no session with any replica.
	if _, err := admin.RotateCA(ctx, &adminv1.RotateCARequest{Mesh: "default", Force: true}); err != nil {
		t.Fatal(err)
	}
	for i, p := range planes {
		admin, ctx := p.adminClient(t, client)
		must.Poll(t, "the end of the rotation at "+names[i], func(context.Context) error {
			r, err := admin.GetRotation(ctx, &adminv1.GetRotationRequest{Mesh: "default"})
			if err == nil && r.GetStep() != adminv1.Rotation_IDLE {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
	}
	// A replica with outdated state would have requested another certificate within a recheck.
	settled := time.After(6 * time.Second)
	<-settled
	for _, p := range planes {
		p.stop()
	}
	for _, m := range machines {
		if m.renewed != 1 || len(m.bundle.GetRoots()) != 1 {
			t.Errorf("%s has renewed its certificate %d times, and trusts %d CAs", m.name, m.renewed, len(m.bundle.GetRoots()))
		}
	}
}
