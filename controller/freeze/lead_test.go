package freeze

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const lostA = "a:nodes:10, lost nodes/a one-zone, lost proxies/a one-zone"

func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		stop := r.lead(t, 7)
		defer stop()
		w.lose("a")
		<-time.After(warmUp - time.Millisecond)
		r.wantVerdict(t, "") // it has just started
		<-time.After(time.Second)
		r.wantVerdict(t, lostA)
		r.wantKept(t, map[string]int{"a": All})
		if held := r.Held(); held != "most nodes of zone a are not seen (one-zone); most proxies of zone a are not seen (one-zone)" {
			t.Errorf("Held() = %q", held)
		}
		w.find()
		<-time.After(10 * time.Second)
		if z, is := r.Verdict().zone("a"); !is || z.Kept >= All || r.Held() != "" {
			t.Errorf("10 s after zone a is seen, it is %v, and Held() = %q", z, r.Held())
		}
		<-time.After(thawStep * All)
		r.wantVerdict(t, "")
		r.wantKept(t, map[string]int{})
		want := []string{"Frozen zones{a}", "NodesLost zones{a}", "ProxiesLost zones{a}", "Thawing zones{a}", "NodesSeen zones{a}", "ProxiesSeen zones{a}", "Thawed zones{a}"}
		if diff := cmp.Diff(want, r.reasons); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// The next leader continues at once, since it has received the verdict.
func TestNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		a, b := w.replica(t, false), w.replica(t, false)
		stop := a.lead(t, 7)
		w.lose("a")
		<-time.After(warmUp + time.Second)
		b.hear(a.Verdict())
		stop() // without a leader the last verdict stays in effect
		<-time.After(time.Hour)
		b.wantVerdict(t, lostA)
		b.wantKept(t, map[string]int{"a": All})
		defer b.lead(t, 8)()
		<-time.After(time.Second)
		b.wantVerdict(t, lostA)
		if v := b.Verdict(); v.Epoch != 8 || v.Zones[0].Since != a.Verdict().Zones[0].Since {
			t.Errorf("the next leader has epoch %d, and frozen since %s, not since %s", v.Epoch, v.Zones[0].Since, a.Verdict().Zones[0].Since)
		}
		// The previous leader does not know it yet.
		stale := a.Verdict()
		b.hear(stale)
		if b.Verdict().Epoch != 8 {
			t.Error("a lower epoch replaces a higher one")
		}
		a.hear(b.Verdict())
		stopOld := a.lead(t, 7)
		w.find()
		<-time.After(time.Second)
		if v := a.Verdict(); v.Epoch != 8 || len(v.Lost) == 0 {
			t.Errorf("a leader of an earlier epoch judges: %+v", v)
		}
		if done, err := a.Order(orderTo("b", true)); done != nil || err != nil {
			t.Errorf("a leader of an earlier epoch accepts an order: %v, %v", done, err)
		}
		stopOld()
	})
}

// A leader that has no verdict may follow a leader that has seen a loss.
func TestLeaderThatHasHeardNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		<-time.After(time.Hour)
		defer r.lead(t, 7)()
		w.lose("a")
		<-time.After(warmUp - time.Second)
		r.wantVerdict(t, "")
		r.hear(&Verdict{Epoch: 6, Count: 3, Zones: []Zone{{"b", Nodes, epoch, All}}, Lost: []Loss{{Nodes, "b", partition.OneZone, epoch}}})
		r.wantVerdict(t, "b:nodes:10, lost nodes/b one-zone")
		<-time.After(2 * time.Second)
		if v := r.Verdict(); v.Epoch != 7 || len(v.Zones) != 2 {
			t.Errorf("it does not continue with the verdict received meanwhile: %+v", v)
		}
	})
}

func TestProxiesAlone(t *testing.T) {
	tests := map[string]struct {
		change func(w *world)
		wait   time.Duration
		want   string
	}{
		"lost":                      {func(*world) {}, proxySilence + time.Second, "lost proxies/a one-zone"},
		"not yet":                   {func(*world) {}, proxySilence - 2*time.Second, ""},
		"their Envoys are here":     {func(w *world) { w.stream("a", 16) }, time.Hour, ""},
		"some of their Envoys are":  {func(w *world) { w.stream("a", 5) }, time.Hour, "lost proxies/a one-zone"},
		"a replica does not answer": {func(w *world) { w.complete = false }, time.Hour, ""},
		"a replica is not heard":    {func(w *world) { w.lacking = []string{"b"} }, time.Hour, ""},
		"few": {func(w *world) {
			maps.DeleteFunc(w.silent, func(name string, _ time.Time) bool { return name > "a-14" })
		}, time.Hour, ""},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld()
			r := w.replica(t, false)
			defer r.lead(t, 7)()
			<-time.After(warmUp + time.Second)
			if w.asked > 0 {
				t.Errorf("streams are requested %d times while all sessions are open", w.asked)
			}
			w.lose("a")
			w.set(func() { clear(w.unknown); tc.change(w) })
			<-time.After(tc.wait)
			r.wantVerdict(t, tc.want)
			r.wantKept(t, map[string]int{}) // endpoints depend on nodes only
		})
	}
}

// Nodes are judged even while a replica is lost, which may have run on one of them.
func TestNodesWithoutPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		<-time.After(warmUp + time.Second)
		w.set(func() { w.lacking = []string{"b"} })
		w.lose("a")
		<-time.After(time.Second)
		r.wantVerdict(t, "a:nodes:10, lost nodes/a one-zone")
	})
}

func TestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		if done, err := r.Order(orderTo("a", true)); done != nil || err != nil {
			t.Errorf("Order() at a replica that does not lead: %v, %v", done, err)
		}
		stop := r.lead(t, 7)
		<-time.After(warmUp + time.Second)
		for _, zone := range []string{"c", ""} {
			_, err := r.Order(orderTo(zone, true))
			if status.Code(err) != codes.NotFound || !strings.Contains(err.Error(), "that have pods of the mesh: a, b") {
				t.Errorf("Order(%q): %v", zone, err)
			}
		}
		order := func(zone string, frozen bool, kept int) {
			t.Helper()
			done, err := r.Order(orderTo(zone, frozen))
			if err != nil || done.GetKeptPercent() != uint32(10*kept) || done.GetDryRun() || (done.GetSince() != nil) != (kept > 0) {
				t.Errorf("Order(%q, %t) = %v, %v", zone, frozen, done, err)
			}
		}
		order("a", true, All)
		r.wantKept(t, map[string]int{"a": All})
		if held := r.Held(); held != "an operator has frozen zone a" {
			t.Errorf("Held() = %q", held)
		}
		order("a", true, All) // a second time
		<-time.After(time.Hour)
		r.wantVerdict(t, "a:operator:10, order a true")
		stop()
		next := w.replica(t, false)
		next.hear(r.Verdict())
		stop = next.lead(t, 8)
		<-time.After(2 * warmUp)
		next.wantVerdict(t, "a:operator:10, order a true")
		r = next
		order("b", false, 0) // zone b is not frozen
		order("a", false, All-1)
		<-time.After(thawStep * All)
		next.wantVerdict(t, "")

		w.lose("a")
		<-time.After(time.Minute)
		next.wantVerdict(t, lostA)
		order("a", false, All-1)
		if held := r.Held(); held != "" {
			t.Errorf("Held() of a mesh whose only loss is thawed = %q", held)
		}
		<-time.After(time.Hour)
		next.wantVerdict(t, "order a false") // the same loss does not freeze it again
		order("a", true, All)                // the operator may freeze it
		<-time.After(time.Second)
		next.wantVerdict(t, "a:operator:10, lost nodes/a one-zone, lost proxies/a one-zone, order a true")
		order("a", false, All-1)
		w.find()
		<-time.After(time.Minute)
		next.wantVerdict(t, "")
		w.lose("a")
		<-time.After(time.Minute)
		next.wantVerdict(t, lostA) // another loss freezes it
		stop()
	})
}

func orderTo(zone string, frozen bool) *adminv1.FreezeZoneRequest {
	return &adminv1.FreezeZoneRequest{Zone: zone, Thaw: !frozen}
}

// While most of the mesh, and half of zone c, are lost, an operator's thaw stays in effect until the mesh is seen
// again, also at the next leader.
func TestOrdersOfALostMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.zones = append(w.zones, "c")
		r := w.replica(t, false)
		stop := r.lead(t, 7)
		<-time.After(warmUp + time.Second)
		half := func(unknown bool) {
			w.set(func() { w.unknown["c0"], w.unknown["c1"] = unknown, unknown })
			<-time.After(time.Minute)
		}
		const lost = "lost nodes/a all, lost nodes/b all, lost proxies/a all, lost proxies/b all"
		w.lose("a")
		w.lose("b")
		<-time.After(time.Minute)
		if done, err := r.Order(orderTo("c", false)); err != nil || done.GetKeptPercent() != 0 {
			t.Errorf("Order() for a zone without loss = %v, %v", done, err)
		}
		for _, frozen := range []bool{true, false} { // as after maintenance
			if _, err := r.Order(orderTo("c", frozen)); err != nil {
				t.Error(err)
			}
		}
		<-time.After(time.Minute)
		r.wantVerdict(t, "a:nodes:10, b:nodes:10, lost nodes/ all, lost nodes/a all, lost nodes/b all, lost proxies/ all, lost proxies/a all, lost proxies/b all")
		half(true)
		if done, err := r.Order(orderTo("c", false)); err != nil || done.GetKeptPercent() != 90 {
			t.Errorf("Order() = %v, %v", done, err)
		}
		const thawed = "a:nodes:10, b:nodes:10, " + lost + ", order c false"
		half(false)
		r.wantVerdict(t, thawed)
		stop()
		next := w.replica(t, false)
		next.hear(r.Verdict())
		stop = next.lead(t, 8)
		half(true)
		next.wantVerdict(t, thawed)
		w.find()
		<-time.After(time.Minute)
		next.wantVerdict(t, "")
		stop()
	})
}

func TestModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		w.lose("a")
		<-time.After(warmUp + time.Second)
		r.wantKept(t, map[string]int{"a": All})
		r.Configure(DryRun)
		<-time.After(time.Second)
		r.wantVerdict(t, lostA)
		r.wantKept(t, nil)
		if done, err := r.Order(orderTo("b", false)); err != nil || !done.GetDryRun() {
			t.Errorf("Order() of a dry run = %v, %v", done, err)
		}
		if r.Held() != "" {
			t.Errorf("a dry run holds: %q", r.Held())
		}
		r.Configure(Off)
		<-time.After(time.Second)
		r.wantVerdict(t, "")
		r.wantKept(t, nil)
		if _, err := r.Order(orderTo("a", true)); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("Order() while it is off: %v", err)
		}
		r.Configure(Enforce)
		<-time.After(time.Second)
		r.wantVerdict(t, lostA)
		r.wantKept(t, map[string]int{"a": All})
	})
}

func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		<-time.After(warmUp + time.Second)
		w.set(func() { w.away = errors.New("connection refused") })
		<-time.After(time.Hour)
		r.wantVerdict(t, "")
		w.set(func() { w.away = nil })
		w.lose("a")
		<-time.After(time.Minute)
		r.wantVerdict(t, lostA)
		w.find()
		w.set(func() { w.away = errors.New("connection refused") })
		<-time.After(time.Hour)
		r.wantVerdict(t, "a:nodes:10, lost nodes/a one-zone")
	})
}

// A replica that starts alone continues with the stored verdict.
func TestSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first := w.replica(t, true)
		stop := first.lead(t, 7)
		w.lose("a")
		<-time.After(warmUp + 2*time.Second)
		stop()
		writes := w.secrets.version(secretName)
		next := w.replica(t, true)
		next.Load(t.Context())
		next.wantVerdict(t, lostA)
		next.wantKept(t, map[string]int{"a": All})
		stop = next.lead(t, 8)
		<-time.After(time.Hour)
		if n := w.secrets.version(secretName) - writes; n != 1 {
			t.Errorf("a leader whose verdict stays the same has written it %d times", n)
		}
		stop()

		// A verdict that no leader can have written is logged and replaced.
		for _, data := range []string{"{", `{"epoch":-1}`, `{"epoch":9,"count":1,"zones":[{"name":"a","by":"unknown","kept":99}]}`} {
			w.secrets[secretName] = memorySecret{data: []byte(data), version: 100}
			broken := w.replica(t, true)
			broken.Load(t.Context())
			broken.wantVerdict(t, "")
			stop := broken.lead(t, 10)
			<-time.After(warmUp + 2*time.Second)
			stop()
			if got := string(w.secrets[secretName].data); !strings.Contains(got, `"epoch":10`) {
				t.Errorf("the invalid Secret %s was kept: %s", data, got)
			}
		}
	})
}

func TestMetric(t *testing.T) {
	w := newWorld()
	r := w.replica(t, false)
	r.hear(&Verdict{Epoch: 1, Count: 1, Zones: []Zone{{"a", Nodes, epoch, 3}, {"b", Operator, epoch, All}}, Lost: []Loss{{Nodes, "", partition.All, epoch}, {Nodes, "a", partition.All, epoch}, {Proxies, "a", partition.All, epoch}}})
	const want = `
# HELP sonde_frozen 1 for each zone that is frozen or thaws (cause nodes or operator), and for each zone most of whose nodes or proxies are silent (nodes or proxies); zone is empty for the whole mesh, and for nodes without a zone.
# TYPE sonde_frozen gauge
sonde_frozen{cause="nodes",zone=""} 1
sonde_frozen{cause="nodes",zone="a"} 1
sonde_frozen{cause="operator",zone="b"} 1
sonde_frozen{cause="proxies",zone="a"} 1
`
	if err := testutil.CollectAndCompare(collector{r.Freeze}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if r.told != 1 {
		t.Errorf("a received verdict is forwarded %d times", r.told)
	}
}

func TestValidate(t *testing.T) {
	for want, v := range map[string]Verdict{
		"epoch: -1":               {Epoch: -1},
		"epoch: 9007199254740993": {Epoch: maxEpoch + 1},
		`lost: kind "pods"`:       {Lost: []Loss{{Kind: "pods"}}},
		`zone "xxxx`:              {Lost: []Loss{{Kind: Nodes, Zone: strings.Repeat("x", 64)}}},
		`by "proxies", kept 10`:   {Zones: []Zone{{Name: "a", By: Proxies, Kept: 10}}},
		"kept 0":                  {Zones: []Zone{{Name: "a", By: Nodes}}},
		"kept 11":                 {Zones: []Zone{{Name: "a", By: Nodes, Kept: 11}}},
		`orders: zone ""`:         {Orders: []Order{{}}},
		"zones: 1001":             {Zones: make([]Zone, 1001)},
	} {
		if err := v.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want one with %q", err, want)
		}
	}
}

// A replica receives what another one sends.
func TestVerdictIsToldAsMessage(t *testing.T) {
	w := newWorld()
	a, b := w.replica(t, false), w.replica(t, false)
	if m := a.Tell(); m != nil {
		t.Errorf("Tell() without a verdict = %v", m)
	}
	v := &Verdict{
		Epoch: 7, Count: 3, Lost: []Loss{{Proxies, "b", partition.OneZone, epoch}}, Zones: []Zone{{"a", Operator, epoch, 4}},
		Orders: []Order{{"a", true, epoch}},
	}
	a.hear(v)
	if err := b.Hear(a.Tell()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v, b.Verdict()); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
	bad := &peerv1.Freeze{Epoch: 8, Count: 1, Zones: []*peerv1.FreezeZone{{Name: "a", By: "unknown", Kept: 10}}}
	if err := b.Hear(bad); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `freeze.zones: "a", by "unknown"`) {
		t.Errorf("Hear() of an invalid verdict: %v", err)
	}
}
