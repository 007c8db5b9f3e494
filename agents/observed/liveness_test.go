package observed_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/agentstest"
	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/waittest"
	"github.com/sonde-mesh/sonde/peers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

var db0 = identity.Subject{Mesh: "default", Dataplane: "db-0", Path: "/ns/shop/sa/db", Instance: "1"}

// replica is what one replica of a control plane knows, and tells the others.
type replica struct {
	*observed.State
	t           *testing.T
	view        func(mesh.ID) *mesh.Dataplane
	ahead       time.Duration // its clock, before the real one
	address     string
	peers       *peers.Peers
	stop        func()
	heldChanges atomic.Int64
}

var _ peers.Local = (*replica)(nil)

func (r *replica) now() time.Time { return time.Now().Add(r.ahead) }

func startReplica(t *testing.T, plane *agentstest.Plane, certificate *serving.Certificate, name string, ahead time.Duration) *replica {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{t: t, ahead: ahead, address: listener.Addr().String(), view: func(id mesh.ID) *mesh.Dataplane { return plane.Builder.View().Dataplane(id) }}
	own := certificate.Replica(mesh.DefaultTrustDomain, name)
	r.peers, err = peers.New(peers.Options{Name: name, Server: own.Server(), Client: own.Client(), NameOf: own.NameOf, Now: r.now})
	if err != nil {
		t.Fatal(err)
	}
	r.State, err = observed.New(observed.Options{
		Authority: plane.Authority, View: plane.Builder.View, Observe: func(mesh.ID, mesh.Observation) {}, Peers: r.peers, Now: r.now,
		Held: func(mesh.ID) { r.heldChanges.Add(1) }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.peers.Connect(r)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.peers.Run(ctx) })
	running.Go(func() { _ = r.peers.Serve(ctx, listener) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *replica) Proxies() []mesh.ID { return r.Told() }

func (r *replica) Proxy(id mesh.ID) *peerv1.Proxy {
	m := &peerv1.Proxy{Id: id, Instance: r.view(id).Identity.Instance}
	if !r.Tell(id, m) {
		return nil
	}
	return m
}

func (*replica) Replica() *peerv1.Replica                                       { return &peerv1.Replica{} }
func (*replica) HeardReplica()                                                  {}
func (*replica) Merged(mesh.ID)                                                 {}
func (*replica) Streams() map[mesh.ID][]*adminv1.Stream                         { return nil }
func (*replica) Decisions(peers.DecisionFilter) peers.Decisions                 { return peers.Decisions{} }
func (*replica) CheckDuplicate(context.Context, mesh.ID, string, string) string { return "" }
func (*replica) Query(context.Context, mesh.ID, mesh.EnvoyView, func([]byte) error) error {
	return nil
}

// hears has the agent of db-0 say in its session of that number which containers are held, for a minute each.
func (r *replica) hears(session int64, containers ...string) {
	m := &agentv1.Liveness{}
	for _, c := range containers {
		m.Held = append(m.Held, &agentv1.HeldLiveness{Container: c, Failing: durationpb.New(time.Minute), Reason: "refused", Grant: c + "-1"})
	}
	r.Liveness(r.t.Context(), db0, observed.Order{Time: session}, r.now(), m)
}

// hearsTold has the agent of db-0 say in its session of that number that the kubelet is told of the failure of a container.
func (r *replica) hearsTold(session int64, container string) {
	r.Liveness(r.t.Context(), db0, observed.Order{Time: session}, r.now(), &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: container, Told: true}}})
}

// tells waits until the replica knows that one container fails, of which the kubelet is told, so that nothing is held.
func (r *replica) tells(what, container string) {
	r.t.Helper()
	waittest.Until(r.t, patience, what, func() error {
		failing, held := r.PodLiveness()[db0.ID()].Failing, r.Of(db0.ID()).Held
		if len(failing) == 1 && failing[0].Container == container && failing[0].Told && !held {
			return nil
		}
		return fmt.Errorf("PodLiveness() = %+v, held: %t", failing, held)
	})
}

// holds waits until the replica knows that these containers are held.
func (r *replica) holds(what string, containers ...string) {
	r.t.Helper()
	waittest.Until(r.t, patience, what, func() error {
		var want []observed.HeldContainer
		for _, c := range containers {
			want = append(want, observed.HeldContainer{Container: c, Since: r.now().Add(-time.Minute), Reason: "refused", Grant: c + "-1"})
		}
		diff := cmp.Diff(want, r.PodLiveness()[db0.ID()].Failing, cmpopts.EquateApproxTime(5*time.Second))
		if held := r.Of(db0.ID()).Held; diff == "" && held != (len(containers) > 0) {
			diff = fmt.Sprintf("its Observation says that it is held: %v", held)
		}
		if diff == "" {
			return nil
		}
		return fmt.Errorf("PodLiveness() (-want +got):\n%s", diff)
	})
}

// TestReplicasTellWhatIsHeld has replicas whose clocks are an hour apart.
func TestReplicasTellWhatIsHeld(t *testing.T) {
	plane := agentstest.New(t)
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: db0.Mesh, Name: db0.Dataplane}, Identity: mesh.Identity{Path: db0.Path, Instance: db0.Instance}}
	d.Spec.Networking.Address = "10.0.0.2"
	d.SetDefaults()
	plane.Builder.Set("test", d)
	certificate, err := serving.Open(t.Context(), serving.Options{Storage: plane.State.Secrets()})
	if err != nil {
		t.Fatal(err)
	}
	waittest.Holds(t, patience, "the view has the pod", func() bool { return plane.Builder.View().Dataplane(db0.ID()) != nil })
	a, b := startReplica(t, plane, certificate, "a", 0), startReplica(t, plane, certificate, "b", time.Hour)
	addresses := map[string]string{"a": a.address, "b": b.address}
	a.peers.Follow(addresses)
	b.peers.Follow(addresses)

	a.hears(1, "app")
	a.holds("its agent says it", "app")
	b.holds("the other replica says it", "app")
	if n := b.heldChanges.Load(); n != 1 {
		t.Errorf("it was told of %d changes, want one", n)
	}
	b.hears(2, "cache", "db")
	b.holds("the session has moved", "cache", "db")
	a.holds("the newest session counts", "cache", "db")
	a.hears(1)
	a.holds("what an earlier session says late does not count", "cache", "db")
	a.hears(3)
	a.holds("all pass")
	b.holds("all pass, as the newest session says")
	if n := b.heldChanges.Load(); n != 3 {
		t.Errorf("it was told of %d changes, want 3", n)
	}

	a.hearsTold(3, "app")
	a.tells("the kubelet is told", "app")
	b.tells("the kubelet is told, as the other replica says", "app")
	a.hears(3, "app")
	b.holds("one is held again", "app")
	a.stop()
	waittest.Holds(t, patience, "the replica is lost", func() bool { return !b.peers.Heard(db0.ID())[0].Lost.IsZero() })
	if held := b.PodLiveness()[db0.ID()].Failing; len(held) != 1 {
		t.Errorf("of a lost replica is left %v", held)
	}
}
