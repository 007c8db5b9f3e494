package peers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/waittest"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// eventually polls until check returns nil.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	waittest.Until(t, patience, "", check)
}

// keys has the serving CA that replicas share.
func keys(t testing.TB) *serving.Certificate {
	t.Helper()
	state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = state.Close() })
	certificate, err := serving.Open(t.Context(), serving.Options{Storage: state.Secrets()})
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// replica is a running replica, and what it knows.
type replica struct {
	*peers.Peers
	name, address string
	registry      *prometheus.Registry
	stop          func()

	mu      sync.Mutex
	proxies map[mesh.ID]*peerv1.Proxy
	taken   bool // whether what is heard is taken at once
	told    map[mesh.ID]string
}

const trustDomain = "sonde.internal"

func start(t testing.TB, certificate *serving.Certificate, name string) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{name: name, address: listener.Addr().String(), registry: prometheus.NewRegistry(), proxies: map[mesh.ID]*peerv1.Proxy{}, taken: true, told: map[mesh.ID]string{}}
	own := certificate.Replica(trustDomain, name)
	r.Peers, err = peers.New(peers.Options{
		Name: name, Version: "test", Server: own.Server(), Client: own.Client(), NameOf: own.NameOf, Registerer: r.registry,
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

// Heard keeps what was heard when it was last told of a proxy.
func (r *replica) Heard(id mesh.ID) {
	said := r.says(id)
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

func (r *replica) Streams() map[mesh.ID][]*adminv1.Stream {
	return map[mesh.ID][]*adminv1.Stream{"default/" + r.name: {{Replica: r.name}}}
}

// Decisions are 1200 if the replica is named b, which leads.
func (r *replica) Decisions(of peers.DecisionFilter) peers.Decisions {
	if r.name != "b" {
		return peers.Decisions{}
	}
	d := peers.Decisions{Round: &adminv1.RestartRound{Replica: r.name, Epoch: 7}}
	for i := range 1200 {
		d.All = append(d.All, &adminv1.RestartDecision{PodUid: of.PodUID, Container: fmt.Sprint(of.Namespace, i)})
	}
	return d
}

// knows replaces what the replica knows of a proxy, nil for nothing.
func (r *replica) knows(p *peerv1.Proxy, id mesh.ID) {
	r.mu.Lock()
	if p == nil {
		delete(r.proxies, id)
	} else {
		r.proxies[id] = p
	}
	r.mu.Unlock()
	r.Changed(id)
}

// says returns what the others have said of a proxy, as REPLICA PROCESS, with LOST for one that is not heard.
func (r *replica) says(id mesh.ID) string {
	var all []string
	for _, said := range r.Peers.Heard(id) {
		text := said.Replica + " " + said.Proxy.GetSession().GetProcess()
		if !said.Lost.IsZero() {
			text += " LOST"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (r *replica) until(t *testing.T, id mesh.ID, want string) {
	t.Helper()
	eventually(t, func() error {
		if got := r.says(id); got != want {
			return fmt.Errorf("%s has heard %q of %s, want %q", r.name, got, id, want)
		}
		return nil
	})
}

// connect has all replicas follow each other.
func connect(all ...*replica) {
	addresses := map[string]string{}
	for _, r := range all {
		addresses[r.name] = r.address
	}
	for _, r := range all {
		r.Follow(addresses)
	}
}

func proxyOf(id mesh.ID, process string) *peerv1.Proxy {
	return &peerv1.Proxy{Id: id, Session: &peerv1.Session{Open: true, Process: process, Order: &peerv1.Order{Time: 1}}}
}

func TestReplicasTellEachOther(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	a.knows(proxyOf("default/web", "one"), "default/web")
	a.knows(proxyOf("default/gone", "one"), "default/gone")
	connect(a, b)
	b.until(t, "default/web", "a one")
	b.until(t, "default/gone", "a one")
	b.knows(proxyOf("default/web", "two"), "default/web")
	a.until(t, "default/web", "b two")
	a.knows(proxyOf("default/web", "three"), "default/web")
	b.until(t, "default/web", "a three")
	a.knows(nil, "default/gone")
	b.until(t, "default/gone", "")
	if missing := b.Missing(); len(missing) > 0 || b.Check() != nil {
		t.Errorf("missing are %q, %v", missing, b.Check())
	}
	if loaded := b.Loaded(); len(loaded) != 1 || loaded[0].State.GetAuthorities()[0].GetSigningCa() != "a" {
		t.Errorf("loaded is %v", loaded)
	}

	// What a lost replica has said holds, until a new process says otherwise.
	a.stop()
	b.until(t, "default/web", "a three LOST")
	eventually(t, func() error {
		if !slices.Equal(b.Missing(), []string{"a"}) || b.Check() == nil {
			return fmt.Errorf("missing are %q, %w", b.Missing(), b.Check())
		}
		return nil
	})
	c := start(t, certificate, "c")
	again := start(t, certificate, "a")
	again.knows(proxyOf("default/other", "four"), "default/other")
	connect(again, b, c)
	b.until(t, "default/other", "a four")
	b.until(t, "default/web", "")
	c.until(t, "default/web", "b two")
}

func TestLostReplicasAreForgotten(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	a.knows(proxyOf("default/web", "one"), "default/web")
	a.knows(proxyOf("default/db", "one"), "default/db")
	connect(a, b)
	b.until(t, "default/web", "a one")
	b.until(t, "default/db", "a one")
	keep := func(said peers.Said) bool { return said.Proxy.GetId() == "default/db" }
	b.Sweep(keep)
	b.until(t, "default/web", "a one")
	a.stop()
	b.until(t, "default/web", "a one LOST")
	b.Sweep(keep)
	b.until(t, "default/web", "")
	b.until(t, "default/db", "a one LOST")
}

// TestTaken has a replica wait until what it has said is on its way to the Envoys of the other.
func TestTaken(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	b.taken = false
	connect(a, b)
	eventually(t, a.Check)
	if a.Behind("default/web") {
		t.Error("a replica is behind that has been told nothing")
	}
	p := proxyOf("default/web", "one")
	p.Awaited = true
	a.knows(p, "default/web")
	b.until(t, "default/web", "a one")
	if !a.Behind("default/web") {
		t.Error("no replica is behind")
	}
	b.Taken("default/web")
	eventually(t, func() error {
		if a.Behind("default/web") {
			return errors.New("a replica is behind that has taken it")
		}
		return nil
	})
	a.knows(p, "default/web")
	if !a.Behind("default/web") {
		t.Error("no replica is behind after another change")
	}
	b.stop()
	eventually(t, func() error {
		if a.Behind("default/web") {
			return errors.New("a lost replica is waited for")
		}
		return nil
	})
}

func TestCalls(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	connect(a, b)
	eventually(t, a.Check)
	eventually(t, b.Check)
	b.knows(proxyOf("default/web", "one"), "default/web")
	var got []byte
	take := func(part []byte) error {
		got = append(got, part...)
		return nil
	}
	if err := a.Peers.Query(t.Context(), "b", "default/web", mesh.ViewStats, take); err != nil || string(got) != "b stats" {
		t.Errorf("Query() = %q, %v", got, err)
	}
	if err := a.Peers.Query(t.Context(), "b", "default/none", mesh.ViewStats, take); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Query() of a proxy without a session: %v", err)
	}
	if err := a.Peers.Query(t.Context(), "c", "default/web", mesh.ViewStats, take); status.Code(err) != codes.Unavailable {
		t.Errorf("Query() of a replica that is none: %v", err)
	}
	if got := a.Peers.CheckDuplicate(t.Context(), "b", "default/web", "two", "10.0.0.1"); !strings.HasPrefix(got, "refused: default/web") {
		t.Errorf("CheckDuplicate() = %q", got)
	}
	if got := a.Peers.CheckDuplicate(t.Context(), "c", "default/web", "two", "10.0.0.1"); got != "" {
		t.Errorf("a replica that is none refuses: %q", got)
	}
	streams, missing := a.Peers.Streams(t.Context())
	if len(streams) != 1 || streams["default/b"][0].GetReplica() != "b" || len(missing) > 0 {
		t.Errorf("Streams() = %v, %q", streams, missing)
	}
	b.stop()
	if _, missing := a.Peers.Streams(t.Context()); !slices.Equal(missing, []string{"b"}) {
		t.Errorf("missing are %q", missing)
	}
}

// TestDecisions asks for what the leader has decided, which is more than one part has.
func TestDecisions(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	connect(a, b)
	eventually(t, a.Check)
	eventually(t, b.Check)
	decided, missing := a.Peers.Decisions(t.Context(), peers.DecisionFilter{Namespace: "shop", PodUID: "u"})
	if len(decided) != 1 || decided[0].Round.GetEpoch() != 7 || len(decided[0].All) != 1200 || len(missing) > 0 {
		t.Errorf("Decisions() = %.200v, %q", decided, missing)
	} else if last := decided[0].All[1199]; last.GetPodUid() != "u" || last.GetContainer() != "shop1199" {
		t.Errorf("the last decision is %v", last)
	}
	if decided, missing := b.Peers.Decisions(t.Context(), peers.DecisionFilter{}); len(decided) > 0 || len(missing) > 0 {
		t.Errorf("a replica that follows has decided: %v, %q", decided, missing)
	}
	b.stop()
	if decided, missing := a.Peers.Decisions(t.Context(), peers.DecisionFilter{}); len(decided) > 0 || !slices.Equal(missing, []string{"b"}) {
		t.Errorf("Decisions() = %v, missing are %q", decided, missing)
	}
}

// TestNamesAreOfOneReplica has two processes with one name: the one that started later counts.
func TestNamesAreOfOneReplica(t *testing.T) {
	certificate := keys(t)
	a, b, second := start(t, certificate, "a"), start(t, certificate, "b"), start(t, certificate, "a")
	a.knows(proxyOf("default/web", "one"), "default/web")
	second.knows(proxyOf("default/web", "two"), "default/web")
	connect(second, b)
	b.until(t, "default/web", "a two")
	a.Follow(map[string]string{"b": b.address})
	eventually(t, func() error {
		if err := a.Check(); err == nil || !strings.Contains(err.Error(), "another process with this name has started later") {
			return fmt.Errorf("the first one is told %w", err)
		}
		return nil
	})
	b.until(t, "default/web", "a two")
	// Its own name, under another one in the list.
	second.Follow(map[string]string{"x": a.address})
	eventually(t, func() error {
		if err := second.Check(); err == nil || !strings.Contains(err.Error(), "is the name of this replica, too") {
			return fmt.Errorf("the second one is told %w", err)
		}
		return nil
	})
}

// dial connects with a certificate that no replica has.
func dial(t *testing.T, address string, config *tls.Config) peerv1.PeerServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return peerv1.NewPeerServiceClient(conn)
}

// TestOthersAreRefused has callers with certificates of an agent, of the control plane for agents, of a replica of another trust domain and of
// another control plane, and without any.
func TestOthersAreRefused(t *testing.T) {
	certificate := keys(t)
	b := start(t, certificate, "b")
	serves, err := certificate.TLS().GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("mesh")}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	leaf, err := authority.Sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, key.Public(), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	with := func(c *tls.Certificate) *tls.Config {
		config := certificate.Replica(trustDomain, "a").Client()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c, nil }
		return config
	}
	otherCA := keys(t).Replica(trustDomain, "a").Client()
	otherCA.VerifyConnection = nil
	otherDomain := certificate.Replica("other.internal", "a").Client()
	otherDomain.VerifyConnection = nil
	tests := map[string]*tls.Config{
		"none":                  with(&tls.Certificate{}),
		"an agent's":            with(&tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key}),
		"a serving one":         with(serves),
		"another trust domain":  otherDomain,
		"another control plane": otherCA,
	}
	for name, config := range tests {
		t.Run(name, func(t *testing.T) {
			client := dial(t, b.address, config)
			_, err := client.CheckDuplicate(t.Context(), &peerv1.CheckDuplicateRequest{})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("the call ends with %v", err)
			}
		})
	}
	eventually(t, func() error {
		if got := testutil.ToFloat64(counter(t, b.registry)); got < float64(len(tests)) {
			return fmt.Errorf("%v are counted, want %d", got, len(tests))
		}
		return nil
	})
}

// counter returns the number of what was refused as a metric.
func counter(t *testing.T, registry *prometheus.Registry) prometheus.Collector {
	t.Helper()
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "value"})
	for _, m := range all {
		if m.GetName() == "sonde_peers_refused_total" {
			gauge.Set(m.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return gauge
}

// TestBadMessages has a replica say what none would.
func TestBadMessages(t *testing.T) {
	certificate := keys(t)
	b := start(t, certificate, "b")
	b.Follow(map[string]string{})
	hello := func(name string) *peerv1.ReportMessage {
		return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Hello{Hello: &peerv1.Hello{Replica: name, Process: "p", Started: timestamppb.Now()}}}
	}
	proxy := func(p *peerv1.Proxy) *peerv1.ReportMessage {
		return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: p}}
	}
	tests := map[string]struct {
		messages []*peerv1.ReportMessage
		code     codes.Code
		want     string
	}{
		"no Hello":           {[]*peerv1.ReportMessage{proxy(proxyOf("default/web", ""))}, codes.InvalidArgument, "hello: must be the first message"},
		"another name":       {[]*peerv1.ReportMessage{hello("c")}, codes.PermissionDenied, `the certificate is for replica "a"`},
		"two Hellos":         {[]*peerv1.ReportMessage{hello("a"), hello("a")}, codes.InvalidArgument, "hello: a stream has one"},
		"an epoch of 0":      {[]*peerv1.ReportMessage{hello("a"), {Message: &peerv1.ReportMessage_Replica{Replica: &peerv1.Replica{Authorities: []*peerv1.Authority{{Mesh: "default"}}}}}}, codes.InvalidArgument, "bundle_epoch: 0: must be at least 1"},
		"a message of 9 MiB": {[]*peerv1.ReportMessage{hello("a"), proxy(proxyOf("default/web", strings.Repeat("x", 9<<20)))}, codes.ResourceExhausted, "larger than max"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			stream, err := dial(t, b.address, certificate.Replica(trustDomain, "a").Client()).Report(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tc.messages {
				_ = stream.Send(m) // the error is with Recv
			}
			_, err = stream.Recv()
			if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the stream ends with %v, want %s with %q", err, tc.code, tc.want)
			}
		})
	}
	if got := b.says("default/web"); got != "" {
		t.Errorf("heard is %q", got)
	}
}

// TestBadProxies has a replica say of proxies what none would: that is counted and left out, and what it says of others is heard.
func TestBadProxies(t *testing.T) {
	certificate := keys(t)
	b := start(t, certificate, "b")
	stream, err := dial(t, b.address, certificate.Replica(trustDomain, "a").Client()).Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Hello{Hello: &peerv1.Hello{Replica: "a", Process: "p", Started: timestamppb.Now()}}})
	long := strings.Repeat("x", 2000)
	bad := []*peerv1.Proxy{
		proxyOf("web", ""), proxyOf("default/"+long, ""), proxyOf("default/web", long),
		{Id: "default/web", Listeners: &peerv1.Listeners{Accepted: []string{"x"}}},
		{Id: "default/web", Listeners: &peerv1.Listeners{Refused: map[string]string{"10.0.0.1:80": long}}},
		{Id: "default/web", Listeners: &peerv1.Listeners{Order: &peerv1.Order{Time: -1}}},
		{Id: "default/web", Liveness: &peerv1.Liveness{Order: &peerv1.Order{Count: -1}}},
		{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: make([]*agentv1.HeldLiveness, agentv1.MaxReported+1)}}},
		{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: long}}}}},
		{Id: "default/web", Liveness: &peerv1.Liveness{Said: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Failing: &durationpb.Duration{Nanos: -1, Seconds: 1}}}}}},
	}
	for _, p := range append(bad, proxyOf("default/good", "one")) {
		if err := stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: p}}); err != nil {
			t.Fatal(err)
		}
	}
	b.until(t, "default/good", "a one")
	if got := testutil.ToFloat64(counter(t, b.registry)); got != float64(len(bad)) || b.says("default/web") != "" {
		t.Errorf("%v are counted, want %d; heard is %q", got, len(bad), b.says("default/web"))
	}
}

// TestManyProxies has a replica report more proxies than it may: what it keeps is limited.
func TestManyProxies(t *testing.T) {
	certificate := keys(t)
	b := start(t, certificate, "b")
	stream, err := dial(t, b.address, certificate.Replica(trustDomain, "a").Client()).Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Hello{Hello: &peerv1.Hello{Replica: "a", Process: "p", Started: timestamppb.Now()}}})
	for i := range 20_001 {
		if stream.Send(&peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: proxyOf(fmt.Sprint("default/", i), "")}}) != nil {
			break
		}
	}
	if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the stream ends with %v", err)
	}
	if n := len(b.HeardProxies()); n != 20_000 {
		t.Errorf("%d proxies are kept", n)
	}
}

// TestReplicasThatAreKept has many replicas come and go: those that are lost make room, and what they have said is taken back.
func TestReplicasThatAreKept(t *testing.T) {
	certificate := keys(t)
	b := start(t, certificate, "b")
	for i := range 17 {
		name := fmt.Sprint("a", i)
		a := start(t, certificate, name)
		id := "default/" + name
		a.knows(proxyOf(id, "one"), id)
		a.Follow(map[string]string{"b": b.address})
		b.until(t, id, name+" one")
		a.stop()
		b.until(t, id, name+" one LOST")
	}
	b.until(t, "default/a0", "")
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told["default/a0"] != "" {
		t.Errorf("of a proxy that is forgotten it was told %q last", b.told["default/a0"])
	}
}

// TestPeerThatReadsNothing has a replica that accepts connections and never answers: the others are told as before.
func TestPeerThatReadsNothing(t *testing.T) {
	certificate := keys(t)
	a, b := start(t, certificate, "a"), start(t, certificate, "b")
	stuck, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stuck.Close() }()
	a.Follow(map[string]string{"b": b.address, "stuck": stuck.Addr().String()})
	b.Follow(map[string]string{"a": a.address})
	a.knows(proxyOf("default/web", "one"), "default/web")
	b.until(t, "default/web", "a one")
	if a.Behind("default/web") {
		t.Error("a replica that was never reached is waited for")
	}
	eventually(t, func() error {
		if got := a.Missing(); !slices.Equal(got, []string{"stuck"}) {
			return fmt.Errorf("missing are %q", got)
		}
		return nil
	})
}
