package freeze

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/partition"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what replicas see: zone a has the nodes a0 to a3 with 4 proxies each, and so has zone b.
type world struct {
	mu       sync.Mutex
	unknown  map[string]bool
	away     error // why the API server does not answer
	silent   map[string]time.Time
	streams  map[string]bool
	complete bool
	asked    int
	lacking  []string
	secrets  memorySecrets
}

func newWorld() *world {
	return &world{unknown: map[string]bool{}, silent: map[string]time.Time{}, streams: map[string]bool{}, complete: true, secrets: memorySecrets{}}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// lose has the kubelets of a zone not be heard, and its proxies not be since now.
func (w *world) lose(zone string) {
	w.set(func() {
		for i := range 4 {
			w.unknown[fmt.Sprint(zone, i)] = true
		}
		for i := range 16 {
			w.silent[fmt.Sprint(zone, "-", i)] = time.Now()
		}
	})
}

func (w *world) find() {
	w.set(func() { clear(w.unknown); clear(w.silent) })
}

func (w *world) nodes() (map[string]Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]Node{}
	for _, zone := range []string{"a", "b"} {
		for i := range 4 {
			name := fmt.Sprint(zone, i)
			all[name] = Node{Zone: zone, Unknown: w.unknown[name]}
		}
	}
	return all, w.away
}

func (w *world) proxies(now time.Time) []partition.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []partition.Member
	for _, zone := range []string{"a", "b"} {
		for i := range 16 {
			m := partition.Member{Name: fmt.Sprint(zone, "-", i), Zone: zone, Heard: now}
			if since, is := w.silent[m.Name]; is {
				m.Heard = since
			}
			all = append(all, m)
		}
	}
	return all
}

// replica is one of the control plane.
type replica struct {
	*Freeze
	mu      sync.Mutex
	kept    map[string]int
	told    int
	reasons []string
	others  []*replica
}

func (w *world) replica(t *testing.T, secrets bool) *replica {
	t.Helper()
	r := &replica{}
	o := Options{
		Nodes: w.nodes, Proxies: w.proxies, Mode: Enforce, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Streams: func(context.Context) (map[string]bool, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
			return maps.Clone(w.streams), w.complete
		},
		Lacking: func() []string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.lacking)
		},
		Apply: func(kept map[string]int) { r.mu.Lock(); defer r.mu.Unlock(); r.kept = kept },
		Tell:  func() { r.mu.Lock(); defer r.mu.Unlock(); r.told++ },
		Record: func(e events.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reasons = append(r.reasons, e.Reason+" "+e.FieldPath)
		},
	}
	if secrets {
		o.Secrets = w.secrets
	}
	r.Freeze = New(o)
	return r
}

// lead has the replica lead until stop.
func (r *replica) lead(t *testing.T, epoch int64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Lead(ctx, epoch) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (r *replica) is(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := r.Verdict().text(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func (r *replica) keeps(t *testing.T, want map[string]int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

const lostA = "a:nodes:10, lost nodes/a one-zone, lost proxies/a one-zone"

func TestLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		stop := r.lead(t, 7)
		defer stop()
		w.lose("a")
		time.Sleep(warmUp - time.Millisecond)
		r.is(t, "") // it has just started
		time.Sleep(time.Second)
		r.is(t, lostA)
		r.keeps(t, map[string]int{"a": All})
		if held := r.Held(); held != "most nodes of zone a are not seen (one-zone); most proxies of zone a are not seen (one-zone)" {
			t.Errorf("Held() = %q", held)
		}
		w.find()
		time.Sleep(10 * time.Second)
		if z, is := r.Verdict().zone("a"); !is || z.Kept >= All || r.Held() != "" {
			t.Errorf("10 s after it is seen zone a is %v, and held is %q", z, r.Held())
		}
		time.Sleep(thawStep * All)
		r.is(t, "")
		r.keeps(t, map[string]int{})
		want := []string{"Frozen zones{a}", "NodesLost zones{a}", "ProxiesLost zones{a}", "Thawing zones{a}", "NodesSeen zones{a}", "ProxiesSeen zones{a}", "Thawed zones{a}"}
		if diff := cmp.Diff(want, r.reasons); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// The next leader goes on at once: it has heard the verdict.
func TestNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		a, b := w.replica(t, false), w.replica(t, false)
		stop := a.lead(t, 7)
		w.lose("a")
		time.Sleep(warmUp + time.Second)
		b.Hear(a.Verdict())
		stop() // without a leader the last verdict holds
		time.Sleep(time.Hour)
		b.is(t, lostA)
		b.keeps(t, map[string]int{"a": All})
		defer b.lead(t, 8)()
		time.Sleep(time.Second)
		b.is(t, lostA)
		if v := b.Verdict(); v.Epoch != 8 || v.Zones[0].Since != a.Verdict().Zones[0].Since {
			t.Errorf("the next leader has epoch %d, and frozen since %s, not since %s", v.Epoch, v.Zones[0].Since, a.Verdict().Zones[0].Since)
		}
		// The one before does not know it yet.
		stale := a.Verdict()
		b.Hear(stale)
		if b.Verdict().Epoch != 8 {
			t.Error("a lower epoch replaces a higher one")
		}
		a.Hear(b.Verdict())
		stopOld := a.lead(t, 7)
		w.find()
		time.Sleep(time.Second)
		if v := a.Verdict(); v.Epoch != 8 || len(v.Lost) == 0 {
			t.Errorf("a leader of an earlier epoch judges: %+v", v)
		}
		if _, _, err := a.Order("b", true); !errors.Is(err, ErrNotLeading) {
			t.Errorf("a leader of an earlier epoch takes an order: %v", err)
		}
		stopOld()
	})
}

// A leader that has heard no verdict may follow one that knew of a loss.
func TestLeaderThatHasHeardNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		time.Sleep(time.Hour)
		defer r.lead(t, 7)()
		w.lose("a")
		time.Sleep(warmUp - time.Second)
		r.is(t, "")
		r.Hear(&Verdict{Epoch: 6, Count: 3, Zones: []Zone{{"b", Nodes, epoch, All}}, Lost: []Loss{{Nodes, "b", partition.OneZone, epoch}}})
		r.is(t, "b:nodes:10, lost nodes/b one-zone")
		time.Sleep(2 * time.Second)
		if v := r.Verdict(); v.Epoch != 7 || len(v.Zones) != 2 {
			t.Errorf("it does not go on with what it has heard meanwhile: %+v", v)
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				r := w.replica(t, false)
				defer r.lead(t, 7)()
				time.Sleep(warmUp + time.Second)
				if w.asked > 0 {
					t.Errorf("streams are asked for %d times while all sessions are open", w.asked)
				}
				w.lose("a")
				w.set(func() { clear(w.unknown); tc.change(w) })
				time.Sleep(tc.wait)
				r.is(t, tc.want)
				r.keeps(t, map[string]int{}) // endpoints go by nodes
			})
		})
	}
}

func (w *world) stream(zone string, n int) {
	for i := range n {
		w.streams[fmt.Sprint(zone, "-", i)] = true
	}
}

// A replica that is lost does not keep nodes from being judged: it may have been on one of them.
func TestNodesWithoutPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		time.Sleep(warmUp + time.Second)
		w.set(func() { w.lacking = []string{"b"} })
		w.lose("a")
		time.Sleep(time.Second)
		r.is(t, "a:nodes:10, lost nodes/a one-zone")
	})
}

func TestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		if _, _, err := r.Order("a", true); !errors.Is(err, ErrNotLeading) {
			t.Errorf("Order() of one that does not lead: %v", err)
		}
		stop := r.lead(t, 7)
		time.Sleep(warmUp + time.Second)
		for _, zone := range []string{"c", ""} {
			_, _, err := r.Order(zone, true)
			if unknown, is := errors.AsType[*UnknownZoneError](err); !is || !slices.Equal(unknown.Known, []string{"a", "b"}) {
				t.Errorf("Order(%q): %v", zone, err)
			}
		}
		order := func(zone string, frozen bool, kept int) {
			t.Helper()
			z, mode, err := r.Order(zone, frozen)
			if err != nil || z.Kept != kept || mode != Enforce {
				t.Errorf("Order(%q, %t) = %+v, %s, %v", zone, frozen, z, mode, err)
			}
		}
		order("a", true, All)
		r.keeps(t, map[string]int{"a": All})
		if held := r.Held(); held != "an operator has frozen zone a" {
			t.Errorf("Held() = %q", held)
		}
		order("a", true, All) // a second time
		time.Sleep(time.Hour)
		r.is(t, "a:operator:10, order a true")
		stop()
		next := w.replica(t, false)
		next.Hear(r.Verdict())
		stop = next.lead(t, 8)
		time.Sleep(2 * warmUp)
		next.is(t, "a:operator:10, order a true")
		r = next
		order("b", false, 0) // is not frozen
		order("a", false, All-1)
		time.Sleep(thawStep * All)
		next.is(t, "")

		w.lose("a")
		time.Sleep(time.Minute)
		next.is(t, lostA)
		order("a", false, All-1)
		if held := r.Held(); held != "" {
			t.Errorf("Held() of a mesh whose only loss is thawed = %q", held)
		}
		time.Sleep(time.Hour)
		next.is(t, "order a false") // the same loss does not freeze it again
		order("a", true, All)       // the operator may
		time.Sleep(time.Second)
		next.is(t, "a:operator:10, lost nodes/a one-zone, lost proxies/a one-zone, order a true")
		order("a", false, All-1)
		w.find()
		time.Sleep(time.Minute)
		next.is(t, "")
		w.lose("a")
		time.Sleep(time.Minute)
		next.is(t, lostA) // another one does
		stop()
	})
}

func TestModes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		w.lose("a")
		time.Sleep(warmUp + time.Second)
		r.keeps(t, map[string]int{"a": All})
		r.Configure(DryRun)
		time.Sleep(time.Second)
		r.is(t, lostA)
		r.keeps(t, nil)
		if r.Held() != "" {
			t.Errorf("a dry run holds: %q", r.Held())
		}
		r.Configure(Off)
		time.Sleep(time.Second)
		r.is(t, "")
		r.keeps(t, nil)
		if _, _, err := r.Order("a", true); !errors.Is(err, ErrOff) {
			t.Errorf("Order() while it is off: %v", err)
		}
		r.Configure(Enforce)
		time.Sleep(time.Second)
		r.is(t, lostA)
		r.keeps(t, map[string]int{"a": All})
	})
}

func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := w.replica(t, false)
		defer r.lead(t, 7)()
		time.Sleep(warmUp + time.Second)
		w.set(func() { w.away = errors.New("connection refused") })
		time.Sleep(time.Hour)
		r.is(t, "")
		w.set(func() { w.away = nil })
		w.lose("a")
		time.Sleep(time.Minute)
		r.is(t, lostA)
		w.find()
		w.set(func() { w.away = errors.New("connection refused") })
		time.Sleep(time.Hour)
		r.is(t, "a:nodes:10, lost nodes/a one-zone")
	})
}

// The verdict is the same for a replica that starts when no other one runs.
func TestSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first := w.replica(t, true)
		stop := first.lead(t, 7)
		w.lose("a")
		time.Sleep(warmUp + 2*time.Second)
		stop()
		writes := w.secrets.version(secretName)
		next := w.replica(t, true)
		next.Load(t.Context())
		next.is(t, lostA)
		next.keeps(t, map[string]int{"a": All})
		stop = next.lead(t, 8)
		time.Sleep(time.Hour)
		if n := w.secrets.version(secretName) - writes; n != 1 {
			t.Errorf("a leader whose verdict stays the same has written it %d times", n)
		}
		stop()

		// What no leader has written is said and replaced.
		for _, data := range []string{"{", `{"epoch":-1}`, `{"epoch":9,"count":1,"zones":[{"name":"a","by":"nobody","kept":99}]}`} {
			w.secrets[secretName] = memorySecret{data: []byte(data), version: 100}
			broken := w.replica(t, true)
			broken.Load(t.Context())
			broken.is(t, "")
			stop := broken.lead(t, 10)
			time.Sleep(warmUp + 2*time.Second)
			stop()
			if got := string(w.secrets[secretName].data); !strings.Contains(got, `"epoch":10`) {
				t.Errorf("the secret %s stays: %s", data, got)
			}
		}
	})
}

func TestMetric(t *testing.T) {
	w := newWorld()
	r := w.replica(t, false)
	r.Hear(&Verdict{Epoch: 1, Count: 1, Zones: []Zone{{"a", Nodes, epoch, 3}, {"b", Operator, epoch, All}}, Lost: []Loss{{Nodes, "", partition.All, epoch}, {Nodes, "a", partition.All, epoch}, {Proxies, "a", partition.All, epoch}}})
	const want = `
# HELP sonde_frozen 1 for each zone that is frozen or thaws (cause nodes or operator), and for each whose nodes or proxies are mostly not seen (nodes or proxies); zone is empty for the whole mesh, and for nodes without a zone.
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
		t.Errorf("what was heard is told on %d times", r.told)
	}
}

func TestValidate(t *testing.T) {
	for want, v := range map[string]Verdict{
		"epoch: -1":               {Epoch: -1},
		"epoch: 9007199254740993": {Epoch: maxEpoch + 1},
		`lost: kind "pods"`:       {Lost: []Loss{{Kind: "pods"}}},
		`of zone "xxxx`:           {Lost: []Loss{{Kind: Nodes, Zone: strings.Repeat("x", 64)}}},
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

// memorySecrets are leader.Secrets.
type memorySecrets map[string]memorySecret

type memorySecret struct {
	data    []byte
	version int
}

func (m memorySecrets) version(name string) int { return m[name].version }

func (m memorySecrets) Read(_ context.Context, name string) ([]byte, string, error) {
	s, is := m[name]
	if !is {
		return nil, "", fs.ErrNotExist
	}
	return s.data, fmt.Sprint(s.version), nil
}

func (m memorySecrets) Create(_ context.Context, name string, data []byte) (string, error) {
	if _, is := m[name]; is {
		return "", fs.ErrExist
	}
	m[name] = memorySecret{data, 1}
	return "1", nil
}

func (m memorySecrets) Update(_ context.Context, name string, data []byte, version string) (string, error) {
	s := m[name]
	if fmt.Sprint(s.version) != version {
		return "", secret.ErrConflict
	}
	m[name] = memorySecret{data, s.version + 1}
	return fmt.Sprint(s.version + 1), nil
}
