package dashboard

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/admin/lists"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/dashboard"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/since"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	stageToken = "the-admin-token"
	source     = "cluster"
)

// stage is the admin service of a control plane on Kubernetes, in this process: real lists of a real view, in which
// pods, and what their agents report, are as the test says.
type stage struct {
	agents
	builder  *meshview.Builder
	since    *since.Times
	health   *health.Registry
	restarts *adminv1.ListRestartsResponse
	began    time.Time

	address string // of the admin API
	roots   *tls.Config
	pods    int
}

// agents are the reports of agents, and the state of their pods.
type agents struct {
	mu       sync.Mutex
	view     *meshview.View
	states   map[mesh.ID]*adminv1.AgentState
	sessions map[mesh.ID]*adminv1.Agent
	streams  map[mesh.ID][]*adminv1.Stream
	verdicts map[mesh.ID]*adminv1.Verdicts
	ofPods   map[string]*adminv1.PodState
}

var _ lists.Agents = (*agents)(nil)

func (a *agents) Agents() map[mesh.ID]*adminv1.Agent                              { return a.sessions }
func (a *agents) States() map[mesh.ID]*adminv1.AgentState                         { return a.states }
func (*agents) NotServing(mesh.ID) map[netip.AddrPort]string                      { return nil }
func (*agents) RefusedListeners(mesh.ID) map[netip.AddrPort]string                { return nil }
func (a *agents) podState(dataplane string) *adminv1.PodState                     { return a.ofPods[dataplane] }
func (*agents) Unresponsive(context.Context, string) (map[mesh.ID]bool, []string) { return nil, nil }

func (a *agents) Verdicts(id mesh.ID) *adminv1.Verdicts {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verdicts[id]
}

func (a *agents) allStreams(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
	return maps.Clone(a.streams), nil // the caller may change it
}

func (a *agents) shown() *meshview.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view
}

func newStage() *stage {
	s := &stage{
		agents: agents{
			states: map[mesh.ID]*adminv1.AgentState{}, sessions: map[mesh.ID]*adminv1.Agent{}, streams: map[mesh.ID][]*adminv1.Stream{},
			verdicts: map[mesh.ID]*adminv1.Verdicts{}, ofPods: map[string]*adminv1.PodState{},
		},
		builder: meshview.NewBuilder(meshview.Options{Sources: []string{source}, ServicesChecked: true}), since: since.New(),
		health: health.New(health.Options{}), restarts: &adminv1.ListRestartsResponse{}, began: time.Now(),
	}
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	m.SetDefaults()
	s.builder.Set(source, m)
	s.builder.Synced(source)
	return s
}

// build shows what has changed in the view.
func (s *stage) build() {
	change, _ := s.builder.Build()
	s.since.Follow(change, time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view = change.After
}

// ago is a time before the stage began.
func (s *stage) ago(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(s.began.Add(-d).Truncate(time.Second))
}

// pod adds a pod with a connected agent, and returns its ID.
func (s *stage) pod(namespace, name string) mesh.ID {
	s.pods++
	address := netip.AddrFrom4([4]byte{10, 0, byte(s.pods / 250), byte(1 + s.pods%250)}).String()
	d := &mesh.Dataplane{
		Meta:     mesh.Meta{Mesh: mesh.DefaultMesh, Name: mesh.ObjectDataplane(namespace, name)},
		Identity: mesh.Identity{Path: mesh.ServiceAccountPath(namespace, "default"), Instance: name},
	}
	d.Spec.Networking = mesh.Networking{Address: address, TransparentProxying: &mesh.TransparentProxying{}, Inbound: []mesh.Inbound{{Port: 8080}}}
	d.SetDefaults()
	s.builder.Set(source, d)
	id := d.ID()
	s.states[id] = &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED, Since: s.ago(26 * time.Hour)}
	s.sessions[id] = &adminv1.Agent{
		Version: "0.3.0", EnvoyVersion: "1.40.0", Features: []string{agentv1.FeatureVerdicts}, ConnectedSince: s.ago(26 * time.Hour),
		CertificateExpires: s.ago(-17 * time.Hour),
	}
	s.streams[id] = []*adminv1.Stream{{Types: []*adminv1.TypeStatus{
		{Kind: "listeners", Synced: true}, {Kind: "clusters", Synced: true}, {Kind: "endpoints", Synced: true}, {Kind: "routes", Synced: true},
	}}}
	s.ofPods[d.Name] = &adminv1.PodState{Ready: true, Created: s.ago(26 * time.Hour)}
	return id
}

// service adds a Service of pods, by their IDs. Those in unready are not Ready.
func (s *stage) service(namespace, name string, pods []mesh.ID, unready ...mesh.ID) {
	view := map[mesh.ID]bool{}
	for _, id := range unready {
		view[id] = true
	}
	o := &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: fmt.Sprintf("%s_%s_svc_80", name, namespace)}}
	o.Spec.Protocol = mesh.ProtocolHTTP
	for _, id := range pods {
		_, dataplane := mesh.SplitID(id)
		e := mesh.ServiceEndpoint{Address: s.addressOf(id), Port: 8080, Dataplane: dataplane}
		if view[id] {
			e.Health = &mesh.EndpointHealth{Ready: new(bool), Serving: new(bool)}
		}
		o.Spec.Endpoints = append(o.Spec.Endpoints, e)
	}
	o.SetDefaults()
	s.builder.Set(source, o)
}

// addressOf returns the address of a pod, which must be in the view.
func (s *stage) addressOf(id mesh.ID) string {
	_, p := s.shown().Proxy(id)
	return p.Dataplane.Spec.Networking.Address
}

// reports sets the verdicts of a pod's probes.
func (s *stage) reports(id mesh.ID, probes ...*adminv1.ProbeVerdicts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.verdicts[id] = &adminv1.Verdicts{Probes: probes}
}

// probe is the report about a probe: its changes, oldest first, as "VERDICT DURATION", which is how long ago.
func (s *stage) probe(container, kind, reason string, changes ...string) *adminv1.ProbeVerdicts {
	p := &adminv1.ProbeVerdicts{Container: container, Probe: kind, Reason: reason, Total: uint32(len(changes))}
	for _, c := range changes {
		verdict, ago, _ := strings.Cut(c, " ")
		d, err := time.ParseDuration(ago)
		if err != nil {
			panic(err) // a test has written it
		}
		p.Changes = append(p.Changes, &adminv1.VerdictChange{Verdict: verdict, At: s.ago(d)})
	}
	return p
}

// answers has the calls about restarts.
type answers struct {
	adminv1.UnimplementedAdminServiceServer
	list *adminv1.ListRestartsResponse
}

func (a answers) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return proto.CloneOf(a.list), nil
}

// serve serves the admin API until the test ends.
func (s *stage) serve(t testing.TB) {
	t.Helper()
	config, roots := certificate.Server(t, mesh.ServingName)
	s.roots = &tls.Config{RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13}
	server, err := admin.NewServer(admin.Options{
		TLS: config, BearerToken: stageToken, View: s.shown, Health: s.health,
		Lists: &lists.Answers{
			View: s.shown, Problems: func() []*adminv1.Problem { return nil }, Streams: s.allStreams, Missing: func() []string { return nil }, Agents: s, Since: s.since,
			CAExpires: func(string) time.Time { return time.Now().AddDate(5, 0, 0) }, PodState: s.podState,
		},
		Rotations: answers{}, Strict: answers{}, Restarts: answers{list: s.restarts},
		Resources: func(mesh.ID, adminv1.Kind) ([]*anypb.Any, bool) { return nil, false },
		Bootstrap: func(*meshview.Proxy) ([]byte, error) { return nil, nil },
		Query:     func(context.Context, mesh.ID, mesh.EnvoyView, func([]byte) error) error { return nil },
		Drain:     func(context.Context, *meshview.Proxy, *string) (string, error) { return "", nil },
		Token:     func(identity.Subject, time.Duration) (string, time.Time, error) { return "", time.Time{}, nil },
	})
	must.Do(t, err)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)
	s.address = l.Addr().String()
	run(t, "the admin API", func(ctx context.Context) error { return server.Serve(ctx, l) })
}

// call calls the admin API over a new connection, as sondectl does.
func (s *stage) call(ctx context.Context, limit time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+stageToken), limit)
	defer cancel()
	conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.roots)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all calls have ended
	return work(ctx, adminv1.NewAdminServiceClient(conn))
}

// dashboard runs sondectl dashboard until the test ends, and returns the printed address.
func (s *stage) dashboard(t testing.TB, clusters func() (dashboard.Clusters, error)) string {
	t.Helper()
	out, in := io.Pipe()
	run(t, "sondectl dashboard", func(ctx context.Context) error {
		cmd := dashboard.Command(dashboard.Options{Call: s.call, Clusters: clusters, Out: in})
		cmd.SetArgs([]string{"--no-open"})
		err := cmd.ExecuteContext(ctx)
		_ = in.CloseWithError(io.ErrUnexpectedEOF) // it never fails
		return err
	})
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		t.Fatal(err)
	}
	return address
}

// run runs a function until the test ends, which fails if it returns an error.
func run(t testing.TB, what string, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	})
}
