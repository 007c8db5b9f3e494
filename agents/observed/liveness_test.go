package observed_test

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/testing/agentstest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/replicas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var db0 = identity.Subject{Mesh: "default", Dataplane: "db-0", Path: "/ns/shop/sa/db", Instance: "1"}

// replica is one replica of a control plane, with its exchange with the others.
type replica struct {
	*observed.State
	t           *testing.T
	view        func(mesh.ID) *mesh.Dataplane
	ahead       time.Duration // of its clock relative to the bubble's
	peers       *replicas.Peers
	stop        func()
	heldChanges atomic.Int64
}

var _ replicas.Local = (*replica)(nil)

func (r *replica) now() time.Time { return time.Now().Add(r.ahead) }

// addresses of the replicas, by their names.
var addresses = map[string]string{"a": "10.1.0.1:5680", "b": "10.1.0.2:5680"}

// startReplicas starts replica a, and replica b whose clock is an hour ahead. They are connected.
func startReplicas(t *testing.T, plane *agentstest.Plane) (a, b *replica) {
	t.Helper()
	certificate, err := serving.Open(t.Context(), serving.Options{Storage: plane.State.Secrets()})
	if err != nil {
		t.Fatal(err)
	}
	network := virtual.NewNetwork()
	a, b = startReplica(t, plane, network, certificate, "a", 0), startReplica(t, plane, network, certificate, "b", time.Hour)
	a.peers.Follow(addresses)
	b.peers.Follow(addresses)
	synctest.Wait()
	return a, b
}

func startReplica(t *testing.T, plane *agentstest.Plane, network *virtual.Network, certificate *serving.Certificate, name string, ahead time.Duration) *replica {
	t.Helper()
	listener, err := network.Listen(t.Context(), "tcp", addresses[name])
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{t: t, ahead: ahead, view: func(id mesh.ID) *mesh.Dataplane { return plane.Builder.View().Dataplane(id) }}
	own := certificate.Replica(mesh.DefaultTrustDomain, name)
	r.peers, err = replicas.New(replicas.Options{
		Name: name, Server: own.Server(), Client: own.Client(), NameOf: own.NameOf, Now: r.now,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return network.DialFrom("10.1.0.9")(ctx, "tcp", address)
		},
	})
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
func (*replica) CheckDuplicate(context.Context, mesh.ID, string, string) string { return "" }
func (*replica) AskPlaintext(context.Context, []string) []*peerv1.Proxy         { return nil }
func (*replica) ListUnresponsive(context.Context, string) []mesh.ID             { return nil }
func (*replica) Decisions(*peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart {
	return nil
}
func (*replica) Query(context.Context, mesh.ID, mesh.EnvoyView, func([]byte) error) error {
	return nil
}

// reportHeld reports, in db-0's session of that number, that these containers are held, each for a minute.
func (r *replica) reportHeld(session int64, containers ...string) {
	m := &agentv1.Liveness{}
	for _, c := range containers {
		m.Held = append(m.Held, failing(c))
	}
	r.Liveness(r.t.Context(), db0, facts.Order{Time: session}, agentv1.ReportedLiveness{Report: m, At: r.now()})
}

func failing(container string) *agentv1.HeldLiveness {
	return &agentv1.HeldLiveness{Container: container, Failing: durationpb.New(time.Minute), Reason: "refused", Grant: container + "-1"}
}

// reportTold reports, in db-0's session of that number, that the kubelet receives the failure of a container.
func (r *replica) reportTold(session int64, container string) {
	m := &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: container, Told: true}}}
	r.Liveness(r.t.Context(), db0, facts.Order{Time: session}, agentv1.ReportedLiveness{Report: m, At: r.now()})
}

// wantFailing checks that the replica has one failing container, whose failure the kubelet receives, and holds none.
func (r *replica) wantFailing(what, container string) {
	r.t.Helper()
	synctest.Wait()
	failing, held := r.PodLiveness()[db0.ID()].Report.GetHeld(), r.Of(db0.ID()).Held
	if len(failing) != 1 || failing[0].GetContainer() != container || !failing[0].GetTold() || held {
		r.t.Errorf("%s: PodLiveness() = %+v, held: %t", what, failing, held)
	}
}

// holds checks that exactly these containers are held at the replica.
func (r *replica) holds(what string, containers ...string) {
	r.t.Helper()
	synctest.Wait()
	var want []*agentv1.HeldLiveness
	for _, c := range containers {
		want = append(want, failing(c))
	}
	if diff := cmp.Diff(want, r.PodLiveness()[db0.ID()].AsOf(r.now()).GetHeld(), protocmp.Transform()); diff != "" {
		r.t.Errorf("%s: PodLiveness() (-want +got):\n%s", what, diff)
	}
	if held := r.Of(db0.ID()).Held; held != (len(containers) > 0) {
		r.t.Errorf("%s: held in its Observation: %v", what, held)
	}
}

// TestReplicasTellWhatIsHeld uses replicas whose clocks differ by an hour.
func TestReplicasTellWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startReplicas(t, planeWith(t))
		a.reportHeld(1, "app")
		a.holds("its agent says it", "app")
		b.holds("the other replica says it", "app")
		if n := b.heldChanges.Load(); n != 1 {
			t.Errorf("%d changes reported, want one", n)
		}
		b.reportHeld(2, "cache", "db")
		b.holds("the session has moved", "cache", "db")
		a.holds("the newest session counts", "cache", "db")
		a.reportHeld(1)
		a.holds("what an earlier session says late does not count", "cache", "db")
		a.reportHeld(3)
		a.holds("all pass")
		b.holds("all pass, as the newest session says")
		if n := b.heldChanges.Load(); n != 3 {
			t.Errorf("%d changes reported, want 3", n)
		}

		a.reportTold(3, "app")
		a.wantFailing("the kubelet is told", "app")
		b.wantFailing("the kubelet is told, as the other replica says", "app")
		a.reportHeld(3, "app")
		b.holds("one is held again", "app")
		a.stop()
		synctest.Wait()
		if b.peers.Heard(db0.ID())[0].Lost.IsZero() {
			t.Error("the replica is not lost")
		}
		if held := b.PodLiveness()[db0.ID()].Report.GetHeld(); len(held) != 1 {
			t.Errorf("%v remains of a lost replica", held)
		}
	})
}
