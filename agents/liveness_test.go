package agents_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

const db0ID = "default/db-0.shop"

// restarts returns the decisions for agents, and records for which proxies Held was called.
type restarts struct {
	mu   sync.Mutex
	of   map[mesh.ID]*agentv1.Restarts
	held []mesh.ID
}

func (r *restarts) Of(id mesh.ID) *agentv1.Restarts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[id]
}

func (*restarts) Decisions(*peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart { return nil }

func (r *restarts) Held(id mesh.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = append(r.held, id)
}

func (r *restarts) set(id mesh.ID, m *agentv1.Restarts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[id] = m
}

// takeHeld returns the number of calls of Held for db-0 since the last call of takeHeld.
func (r *restarts) takeHeld(t testing.TB) int {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.held
	r.held = nil
	for _, id := range told {
		if id != db0ID {
			t.Errorf("Held(%s) was called", id)
		}
	}
	return len(told)
}

// wantHeldCalls waits until Held was called this number of times, and not more often.
func (r *restarts) wantHeldCalls(h *podHarness, times int) {
	h.t.Helper()
	told := 0
	h.eventually(fmt.Sprintf("it is told %d times", times), func() bool {
		told += r.takeHeld(h.t)
		return told >= times
	})
	if told > times {
		h.t.Errorf("Held was called %d times, want %d", told, times)
	}
}

// guardedPod starts a control plane that grants restarts, and a joined agent of the pod shop/db-0.
func guardedPod(t *testing.T) (*podHarness, *restarts, *agent) {
	t.Helper()
	r := &restarts{of: map[mesh.ID]*agentv1.Restarts{}}
	h := newPodHarness(t, podTokens{"1": db0("1"), "2": db0("2")}, func(o *agents.Options) { o.Restarts = r })
	h.has("1")
	a := h.pod("1")
	a.features = append(a.features, agentv1.FeatureRestartGrants)
	a.mustJoin()
	return h, r, a
}

// holds reports containers as held.
func (a *agent) holds(held ...*agentv1.HeldLiveness) {
	a.h.t.Helper()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: &agentv1.Liveness{Held: held}}})
}

func heldFor(container string, failing time.Duration) *agentv1.HeldLiveness {
	return &agentv1.HeldLiveness{Container: container, Failing: durationpb.New(failing), Reason: "connection refused"}
}

// failing is the reported state of a container whose probe fails.
type failing struct {
	container, reason, grant string
	told                     bool
	since                    time.Time
}

// known waits until the control plane has these containers of db-0 as held.
func (h *podHarness) known(want ...failing) {
	h.t.Helper()
	h.until("PodLiveness() (-want +got)", func() error {
		l := h.server.PodLiveness()[db0ID]
		var got []failing
		for _, held := range l.Report.GetHeld() {
			got = append(got, failing{held.GetContainer(), held.GetReason(), held.GetGrant(), held.GetTold(), l.Since(held)})
		}
		return different(cmp.Diff(want, got, cmpopts.EquateApproxTime(time.Second), cmp.AllowUnexported(failing{})))
	})
}

func (h *podHarness) heldSince(container string, duration time.Duration) failing {
	return failing{container: container, reason: "connection refused", since: h.now().Add(-duration)}
}

// is waits until the endpoint of db-0 has this health.
func (h *podHarness) is(health meshview.Health, reason meshview.Reason) {
	h.t.Helper()
	h.eventually("the endpoint has its health", func() bool {
		e := h.endpoint("db", "db-0.shop")
		return e != nil && e.Health == health && e.Reason == reason
	})
}

func TestHeldLivenessOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, a := guardedPod(t)
		a.connect(false)
		h.is(meshview.Ready, meshview.NoReason)
		a.holds(heldFor("app", time.Minute), heldFor("cache", 0))
		h.known(h.heldSince("app", time.Minute), h.heldSince("cache", 0))
		h.is(meshview.Draining, meshview.LivenessHeld)
		r.wantHeldCalls(h, 1)
		if told := h.server.Proxy(db0ID).GetLiveness().GetSaid().GetHeld(); len(told) != 2 || told[0].GetFailing().AsDuration() < time.Minute || told[1].GetContainer() != "cache" {
			t.Errorf("other replicas get %v", told)
		}

		a.holds(heldFor("app", time.Minute), heldFor("cache", 0))
		a.heard()
		if n := r.takeHeld(t); n != 0 {
			t.Errorf("Held was called %d times without a change", n)
		}
		granted := heldFor("app", time.Minute)
		granted.Grant = "g-2"
		a.holds(granted)
		want := h.heldSince("app", time.Minute)
		want.grant = "g-2"
		h.known(want)
		h.is(meshview.Draining, meshview.LivenessHeld)
		r.wantHeldCalls(h, 1)

		a.holds()
		h.known()
		h.is(meshview.Ready, meshview.NoReason)
		for _, line := range [][]string{{"guarded liveness probe fails", "container=app"}, {"guarded liveness probe fails", "container=cache"}, {"no longer fails", "container=app"}} {
			h.eventually("it is logged once", func() bool { return len(h.log.Lines(line...)) == 1 })
		}
	})
}

// TestHeldLivenessOutlivesASession checks that a pod stays held without a session, until another session reports
// otherwise, or another pod has its name.
func TestHeldLivenessOutlivesASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, a := guardedPod(t)
		a.connect(false)
		a.holds(heldFor("app", 0))
		h.is(meshview.Draining, meshview.LivenessHeld)
		a.leave()
		h.eventually("the session has ended", func() bool { return !h.server.Proxy(db0ID).GetSession().GetOpen() })
		h.known(h.heldSince("app", 0))
		a.connect(false)
		a.heard()
		h.known(h.heldSince("app", 0))
		a.holds(heldFor("cache", 0))
		h.known(h.heldSince("cache", 0))

		r.wantHeldCalls(h, 2)
		h.has("2")
		h.known()
		r.wantHeldCalls(h, 1)
		if m := h.server.Proxy(db0ID); m.GetLiveness() != nil {
			t.Errorf("other replicas get %v about its successor", m)
		}
		h.eventually("its successor is not held", func() bool {
			_, p := h.builder.View().Proxy(db0ID)
			return !p.Observed.Held
		})
	})
}

func TestHeldLivenessOfAPodThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, a := guardedPod(t)
		a.connect(false)
		a.holds(heldFor("app", 0))
		h.known(h.heldSince("app", 0))
		r.wantHeldCalls(h, 1)
		h.builder.Delete("test", mesh.Key{Kind: mesh.KindDataplane, Mesh: "default", Name: "db-0.shop"})
		h.known()
		r.wantHeldCalls(h, 1)
	})
}

func TestLivenessRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long := strings.Repeat("g", 254)
		var many []*agentv1.HeldLiveness
		for i := range agentv1.MaxReported + 1 {
			many = append(many, heldFor(fmt.Sprint("c-", i), 0))
		}
		tests := map[string]struct {
			held []*agentv1.HeldLiveness
			want string
		}{
			"too many":           {many, "21 containers, must be at most 20"},
			"no name":            {[]*agentv1.HeldLiveness{heldFor("", 0)}, "must be the name of a container"},
			"no DNS label":       {[]*agentv1.HeldLiveness{heldFor("App", 0)}, `container: "App": must be the name of a container`},
			"a long name":        {[]*agentv1.HeldLiveness{heldFor(strings.Repeat("a", 64), 0)}, "must be the name of a container"},
			"twice":              {[]*agentv1.HeldLiveness{heldFor("app", 0), heldFor("app", 0)}, `container: "app": must occur only once`},
			"a negative time":    {[]*agentv1.HeldLiveness{heldFor("app", -time.Second)}, `failing of "app"`},
			"no time":            {[]*agentv1.HeldLiveness{{Container: "app", Failing: &durationpb.Duration{Nanos: 1e9}}}, `failing of "app"`},
			"a long grant":       {[]*agentv1.HeldLiveness{{Container: "app", Grant: long}}, "must be at most 253 characters"},
			"more than 32 KiB":   {[]*agentv1.HeldLiveness{{Container: "app", Reason: strings.Repeat("r", 32<<10)}}, "more than 32768 bytes"},
			"second is wrong":    {[]*agentv1.HeldLiveness{heldFor("app", 0), heldFor("a_b", 0)}, `container: "a_b"`},
			"ends with a hyphen": {[]*agentv1.HeldLiveness{heldFor("app-", 0)}, `container: "app-"`},
		}
		h, _, a := guardedPod(t)
		for name, tc := range tests {
			a.connect(false)
			a.holds(tc.held...)
			if got := status.Convert(a.ending()); got.Code() != codes.InvalidArgument || !strings.Contains(got.Message(), tc.want) {
				t.Errorf("%s: the session ends with %v, want InvalidArgument with %q", name, got, tc.want)
			}
			a.leave()
		}
		h.known()
	})
}

// TestLongLiveness checks that the longest message is accepted, and a longer reason cut.
func TestLongLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, a := guardedPod(t)
		a.connect(false)
		longest := make([]*agentv1.HeldLiveness, agentv1.MaxReported)
		for i := range longest {
			longest[i] = &agentv1.HeldLiveness{
				Container: fmt.Sprint(strings.Repeat("c", 61), 10+i), Failing: durationpb.New(time.Hour), Reason: strings.Repeat("r", agentv1.MaxReason),
				Grant: strings.Repeat("g", 253),
			}
		}
		longest[0].Reason += "more"
		a.holds(longest...)
		h.eventually("all are held", func() bool { return len(h.server.PodLiveness()[db0ID].Report.GetHeld()) == agentv1.MaxReported })
		if got := h.server.PodLiveness()[db0ID].Report.GetHeld()[0].GetReason(); len(got) != agentv1.MaxReason {
			t.Errorf("the reason has %d bytes", len(got))
		}
	})
}

// TestLivenessIsHeardOnceASecond checks that reports of an agent that changes them constantly are processed once per
// second, and that the last report is processed.
func TestLivenessIsHeardOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, a := guardedPod(t)
		a.connect(false)
		began := time.Now()
		for i := range 40 {
			a.holds(heldFor(fmt.Sprint("c", i), time.Minute))
		}
		a.holds(heldFor("last", time.Minute))
		heard := func(container string) func() bool {
			return func() bool {
				said := h.server.PodLiveness()[db0ID].Report.GetHeld()
				return len(said) == 1 && said[0].GetContainer() == container
			}
		}
		h.eventually("the last message is heard", heard("last"))
		if told, took := r.takeHeld(t), time.Since(began); told != int(took/time.Second)+1 || took < 2*time.Second {
			t.Errorf("Held was called %d times in %s for 41 messages, want one at once and one a second", told, took)
		}
		a.holds(heldFor("end", time.Minute))
		if err := a.stream.CloseSend(); err != nil { // before the control plane processes the report
			t.Fatal(err)
		}
		h.eventually("the last word is heard", heard("end"))
	})
}

func TestAgentsAreToldOfRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, a := guardedPod(t)
		first := &agentv1.Restarts{WhenAway: &agentv1.WhenAway{Policy: agentv1.WhenAway_SLOTS}}
		r.set(db0ID, first)
		a.connect(false)
		if m := a.receive(); !proto.Equal(m.GetRestarts(), first) {
			t.Fatalf("got %v, want the current decisions", m)
		}
		h.server.WakeRestarts("default/other")
		h.server.WakeRestarts(db0ID)
		a.heard()
		second := &agentv1.Restarts{Grants: []*agentv1.RestartGrant{{Name: "g-1", Container: "app", Epoch: 7}}}
		r.set(db0ID, second)
		h.server.WakeRestarts(db0ID)
		if m := a.receive(); !proto.Equal(m.GetRestarts(), second) {
			t.Errorf("got %v, want the grant", m)
		}
		a.leave()

		a.features = slices.DeleteFunc(a.features, func(f string) bool { return f == agentv1.FeatureRestartGrants })
		a.connect(false)
		a.heard()
		a.wantNothing("it lacks the feature")
	})
}

// welcomeFeatures opens a session, and returns the features of the control plane.
func (a *agent) welcomeFeatures() []string {
	a.h.t.Helper()
	a.open()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{Features: a.features, InUse: a.inUse()}}})
	return a.receive().GetWelcome().GetFeatures()
}

func TestRestartGrantsAreOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, a := guardedPod(t)
		if features := a.welcomeFeatures(); !slices.Contains(features, agentv1.FeatureRestartGrants) {
			t.Errorf("features %v", features)
		}
	})
}

// TestLivenessIsIgnored checks that a control plane without restarts does not offer the feature and ignores reports,
// and that reports of agents outside pods are ignored.
func TestLivenessIsIgnored(t *testing.T) {
	tests := map[string]func(*testing.T) (*harness, *agent){
		"no restarts are granted": func(t *testing.T) (*harness, *agent) {
			h := newPodHarness(t, podTokens{"1": db0("1")})
			h.has("1")
			a := h.pod("1")
			a.mustJoin()
			if features := a.welcomeFeatures(); slices.Contains(features, agentv1.FeatureRestartGrants) {
				t.Errorf("features %v", features)
			}
			return h.harness, a
		},
		"of a written Dataplane": func(t *testing.T) (*harness, *agent) {
			h, a := joined(t, func(o *agents.Options) { o.Restarts = &restarts{} })
			a.connect(false)
			return h, a
		},
	}
	for name, start := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := start(t)
			before := h.metric("sonde_agents_unknown_messages_total", "")
			a.holds(heldFor("app", 0))
			h.eventually("it is counted", func() bool { return h.metric("sonde_agents_unknown_messages_total", "") == before+1 })
			if all := h.server.PodLiveness(); len(all) > 0 {
				t.Errorf("held containers %v", all)
			}
		})
	}
}
