package replicas_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/replicas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const trustDomain = "sonde.internal"

// cluster has the network and the serving CA that replicas share.
type cluster struct {
	t           *testing.T
	network     *virtual.Network
	certificate *serving.Certificate
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	certificate, err := serving.Open(t.Context(), serving.Options{Storage: &secrettest.Memory{}})
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{t: t, network: virtual.NewNetwork(), certificate: certificate}
}

// listen returns a listener at a free address.
func (c *cluster) listen() net.Listener {
	c.t.Helper()
	listener, err := c.network.Listen(c.t.Context(), "tcp", "10.1.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	return listener
}

func (c *cluster) dial(ctx context.Context, address string) (net.Conn, error) {
	return c.network.DialFrom("10.1.0.2")(ctx, "tcp", address)
}

// client connects with a certificate that no replica has.
func (c *cluster) client(address string, config *tls.Config) peerv1.PeerServiceClient {
	c.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithContextDialer(c.dial))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	return peerv1.NewPeerServiceClient(conn)
}

// report opens a stream to a replica as replica a, without a Hello.
func (c *cluster) report(to *replica) peerv1.PeerService_ReportClient {
	c.t.Helper()
	stream, err := c.client(to.address, c.certificate.Replica(trustDomain, "a").Client()).Report(wait.Context(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	return stream
}

func helloOf(name string) *peerv1.ReportMessage {
	return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Hello{Hello: &peerv1.Hello{Replica: name, Process: "p", Started: timestamppb.Now()}}}
}

// replica is a running replica and its data.
type replica struct {
	*replicas.Peers
	name, address string
	registry      *prometheus.Registry
	stop          func()

	mu      sync.Mutex
	proxies map[mesh.ID]*peerv1.Proxy
	taken   bool // whether Envoys have received a report at once
	told    map[mesh.ID]string
}

func (c *cluster) start(name string) *replica {
	t := c.t
	t.Helper()
	listener := c.listen()
	r := &replica{name: name, address: listener.Addr().String(), registry: prometheus.NewRegistry(), proxies: map[mesh.ID]*peerv1.Proxy{}, taken: true, told: map[mesh.ID]string{}}
	own := c.certificate.Replica(trustDomain, name)
	var err error
	r.Peers, err = replicas.New(replicas.Options{
		Name: name, Version: "test", Server: own.Server(), Client: own.Client(), NameOf: own.NameOf, Dial: c.dial, Registerer: r.registry,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Connect(r)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	running.Go(func() {
		if err := r.Serve(ctx, listener); err != nil {
			t.Error(err)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *replica) Proxies() []mesh.ID {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []mesh.ID
	for id := range r.proxies {
		all = append(all, id)
	}
	return all
}

func (r *replica) Proxy(id mesh.ID) *peerv1.Proxy {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.proxies[id]; p != nil {
		return proto.CloneOf(p)
	}
	return nil
}

func (r *replica) Replica() *peerv1.Replica {
	return &peerv1.Replica{Authorities: []*peerv1.Authority{{Mesh: "default", BundleEpoch: 7, SigningCa: r.name}}}
}

func (r *replica) Merged(id mesh.ID) {
	r.mu.Lock()
	taken := r.taken
	r.mu.Unlock()
	if taken {
		r.Taken(id)
	}
}

func (*replica) HeardReplica() {}

// Heard records the other replicas' reports when a report about a proxy has changed.
func (r *replica) Heard(id mesh.ID) {
	said := r.reportsOf(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told[id] = said
}

func (r *replica) Query(_ context.Context, id mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
	if r.Proxy(id) == nil {
		return status.Error(codes.FailedPrecondition, "no session")
	}
	return take([]byte(r.name + " " + string(view)))
}

func (r *replica) CheckDuplicate(_ context.Context, id mesh.ID, process, address string) string {
	return fmt.Sprint("refused: ", id, process, address)
}

// ListUnresponsive returns the proxies of a mesh.
func (r *replica) ListUnresponsive(_ context.Context, meshName string) (all []mesh.ID) {
	for _, id := range r.Proxies() {
		if of, _ := mesh.SplitID(id); meshName == "" || of == meshName {
			all = append(all, id)
		}
	}
	return all
}

// AskPlaintext returns the replica's counts of proxies of these meshes.
func (r *replica) AskPlaintext(_ context.Context, meshes []string) (all []*peerv1.Proxy) {
	for _, id := range r.Proxies() {
		if meshName, _ := mesh.SplitID(id); slices.Contains(meshes, meshName) {
			all = append(all, r.Proxy(id))
		}
	}
	return all
}

func (r *replica) Streams() map[mesh.ID][]*adminv1.Stream {
	return map[mesh.ID][]*adminv1.Stream{"default/" + r.name: {{Replica: r.name}}}
}

// Decisions returns 1200 decisions if the replica is b, which leads.
func (r *replica) Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart {
	if r.name != "b" {
		return nil
	}
	d := &peerv1.ListDecisionsPart{Round: &adminv1.RestartRound{Replica: r.name, Epoch: 7}}
	for i := range 1200 {
		d.Decisions = append(d.Decisions, &adminv1.RestartDecision{PodUid: of.GetPodUid(), Container: fmt.Sprint(of.GetNamespace(), i)})
	}
	return d
}

// setProxy replaces the replica's state of a proxy; nil removes it.
func (r *replica) setProxy(p *peerv1.Proxy, id mesh.ID) {
	r.mu.Lock()
	if p == nil {
		delete(r.proxies, id)
	} else {
		r.proxies[id] = p
	}
	r.mu.Unlock()
	r.Changed(id)
}

// reportsOf returns the others' reports of a proxy, as REPLICA PROCESS, with LOST for a disconnected replica.
func (r *replica) reportsOf(id mesh.ID) string {
	var all []string
	for _, ok := range r.Peers.Heard(id) {
		text := ok.Replica + " " + ok.Proxy.GetSession().GetProcess()
		if !ok.Lost.IsZero() {
			text += " LOST"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// wantReports checks the others' reports of a proxy at this replica, without waiting.
func (r *replica) wantReports(t *testing.T, id mesh.ID, want string) {
	t.Helper()
	synctest.Wait()
	if got := r.reportsOf(id); got != want {
		t.Errorf("%s has reports %q of %s, want %q", r.name, got, id, want)
	}
}

// connect connects all replicas with each other, and waits until they are connected.
func connect(all ...*replica) {
	addresses := map[string]string{}
	for _, r := range all {
		addresses[r.name] = r.address
	}
	for _, r := range all {
		r.Follow(addresses)
	}
	synctest.Wait()
}

func proxyOf(id mesh.ID, process string) *peerv1.Proxy {
	return &peerv1.Proxy{Id: id, Session: &peerv1.Session{Open: true, Process: process, Order: &peerv1.Order{Time: 1}}}
}

// refused returns a replica's count of rejected messages.
func (r *replica) refused(t *testing.T) float64 {
	t.Helper()
	all, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "sonde_peers_refused_total" {
			return m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("rejections are not counted")
	return 0
}
