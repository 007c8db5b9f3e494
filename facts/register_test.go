package facts_test

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

const (
	web   = "default/web"
	start = 1_000_000
)

// world has all that the facts of one replica depend on.
type world struct {
	*facts.Facts
	instance string // instance of the proxy in the view, if the view has the proxy
	inView   bool
	said     []facts.Said
	now      time.Time
	told     int
	changes  int // number of changes of liveness
	observed mesh.Observation
	files    files
}

// files is a storage.
type files map[string]string

func (f files) Read(name string) ([]byte, error) { return []byte(f[name]), nil }
func (f files) Remove(name string) error         { delete(f, name); return nil }
func (f files) Write(name string, data []byte) error {
	f[name] = string(data)
	return nil
}

func (f files) List(directory string) ([]string, error) {
	all := map[string]bool{}
	for name := range f {
		if below, ok := strings.CutPrefix(name, directory+"/"); ok {
			first, _, _ := strings.Cut(below, "/")
			all[first] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}

func newWorld(t *testing.T, kept files) *world {
	t.Helper()
	w := &world{inView: true, instance: "1", now: time.Unix(start, 0), files: kept}
	w.Facts = facts.New(facts.Options{
		Dataplane: func(mesh.ID) *mesh.Dataplane {
			if !w.inView {
				return nil
			}
			return &mesh.Dataplane{Identity: mesh.Identity{Instance: w.instance}}
		},
		Heard:   func(mesh.ID) []facts.Said { return slices.Clone(w.said) },
		Changed: func(mesh.ID) { w.told++ },
		Observe: func(_ mesh.ID, o mesh.Observation) { w.observed = o },
		Storage: kept, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return w.now },
	})
	w.Liveness.OnChange(func(mesh.ID) { w.changes++ })
	if err := w.Load(); err != nil {
		t.Fatal(err)
	}
	return w
}

// hears makes another replica report m about the proxy.
func (w *world) hears(replica string, m *peerv1.Proxy) {
	w.said = slices.DeleteFunc(w.said, func(s facts.Said) bool { return s.Replica == replica })
	if m != nil {
		m.Id = web
		w.said = append(w.said, facts.Said{Replica: replica, Proxy: m, At: w.now})
	}
	w.Heard(web)
}

func order(n int64) *peerv1.Order { return &peerv1.Order{Time: n} }

func livenessOf(n int64, container, reason string) *peerv1.Liveness {
	return &peerv1.Liveness{Order: order(n), Said: &agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: container, Reason: reason}}}}
}

// says makes the agent of the instance report here that a container fails.
func (w *world) says(instance string, n int64, container, reason string) bool {
	_, taken := w.Liveness.Say(web, facts.Fact[*peerv1.Liveness]{Said: livenessOf(n, container, reason), At: w.now, Instance: instance})
	return taken
}

// TestNewestWins has two replicas and this one report about a proxy, in any order.
func TestNewestWins(t *testing.T) {
	w := newWorld(t, files{})
	fails := func(what, want string) {
		t.Helper()
		got := w.Liveness.Newest(web).Said.GetSaid().GetHeld()
		if len(got) != 1 || got[0].GetContainer() != want || !w.observed.Held {
			t.Errorf("%s: %v is known, held: %t, want %s", what, got, w.observed.Held, want)
		}
	}
	w.says("1", 5, "own", "")
	fails("it is said here", "own")
	w.hears("b", &peerv1.Proxy{Instance: "1", Liveness: livenessOf(4, "older", "")})
	fails("another replica knows an older one", "own")
	w.hears("b", &peerv1.Proxy{Instance: "1", Liveness: livenessOf(5, "same", "")})
	fails("another replica knows one of the same session", "own")
	w.hears("c", &peerv1.Proxy{Instance: "1", Liveness: livenessOf(7, "newest", "")})
	w.hears("b", &peerv1.Proxy{Instance: "1", Liveness: livenessOf(6, "newer", "")})
	fails("two know a newer one", "newest")
	w.hears("c", nil)
	fails("one has forgotten it", "newer")
	w.hears("b", &peerv1.Proxy{Instance: "0", Liveness: livenessOf(8, "predecessor", "")})
	fails("it is of another instance", "own")
	if err := w.Drop(web); err != nil {
		t.Error(err)
	}
	if w.Liveness.Newest(web).Known() || w.observed != (mesh.Observation{}) {
		t.Errorf("of what was dropped is left %+v", w.observed)
	}
}

// TestOnlyNewsIsTold counts the messages to other replicas, and the notifications of changes of the newest fact.
func TestOnlyNewsIsTold(t *testing.T) {
	w := newWorld(t, files{})
	check := func(what string, told, changes int) {
		t.Helper()
		if w.told != told || w.changes != changes {
			t.Errorf("%s: told %d, changed %d, want %d, %d", what, w.told, w.changes, told, changes)
		}
	}
	w.says("1", 1, "app", "refused")
	check("a container fails", 1, 1)
	w.now = w.now.Add(time.Minute)
	w.says("1", 1, "app", "refused")
	check("it is said again", 1, 1)
	if at := w.Liveness.All()[web].At; !at.Equal(w.now) {
		t.Errorf("what is said again counts from %s, want %s", at, w.now)
	}
	w.says("1", 1, "app", "timeout")
	check("only the reason is another one", 2, 2)
	w.says("1", 2, "app", "timeout")
	check("only the session is another one", 3, 2)
	if w.says("0", 3, "app", "late") {
		t.Error("what another instance says is taken")
	}
	check("another instance says something", 3, 2)
	if _, taken := w.Plaintext.Say(web, facts.Fact[*peerv1.Plaintext]{Said: &peerv1.Plaintext{}, Instance: "0"}); taken {
		t.Error("what another instance has counted is taken")
	}
	check("another instance says something of a kind of which each report is news", 3, 2)
	w.instance = "2"
	w.Heard(web)
	check("the next instance is in the view", 3, 3)
	if w.observed.Held || w.Tell(web, &peerv1.Proxy{}) {
		t.Error("what its predecessor has said holds for it")
	}

	// A changed text of a reason is sent to other replicas, too.
	reason := func(text string) {
		if err := w.Applications.Update(web, func(facts.Fact[*peerv1.Applications], facts.Fact[*peerv1.Applications]) facts.Fact[*peerv1.Applications] {
			return facts.Fact[*peerv1.Applications]{Said: &peerv1.Applications{Order: order(1), NotServing: map[string]string{"10.0.0.1:80": text}}}
		}); err != nil {
			t.Error(err)
		}
	}
	reason("not said yet")
	reason("refused")
	reason("refused")
	check("a reason changes once", 5, 3)
}

// TestTold checks the message for another replica, a minute after the report.
func TestTold(t *testing.T) {
	w := newWorld(t, files{})
	w.says("1", 1, "app", "refused")
	_ = w.Listeners.Update(web, func(facts.Fact[*peerv1.Listeners], facts.Fact[*peerv1.Listeners]) facts.Fact[*peerv1.Listeners] {
		return facts.Fact[*peerv1.Listeners]{Said: &peerv1.Listeners{Order: order(2), Refused: map[string]string{"10.0.0.1:80": strings.Repeat("x", 2000)}}}
	})
	w.now = w.now.Add(time.Minute)
	m := &peerv1.Proxy{Id: web, Instance: "1"}
	if !w.Tell(web, m) || !slices.Equal(w.Told(), []mesh.ID{web}) {
		t.Errorf("told is of %v %v", w.Told(), m)
	}
	if got := m.GetLiveness().GetSaid().GetHeld()[0].GetFailing().AsDuration(); got != time.Minute {
		t.Errorf("told is that it fails for %s", got)
	}
	if err := facts.CheckProxy(m); err != nil {
		t.Errorf("another replica refuses it: %v", err)
	}
	if diff := cmp.Diff(order(2), m.GetListeners().GetOrder(), protocmp.Transform()); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got := len(w.Listeners.Newest(web).Said.GetRefused()["10.0.0.1:80"]); got != 2000 {
		t.Errorf("of the reason %d bytes are left here", got)
	}
}

// TestKept restarts a replica.
func TestKept(t *testing.T) {
	kept := files{"applications/default/broken": "{"}
	w := newWorld(t, kept)
	set := func(reasons map[string]string) {
		if err := w.Applications.Update(web, func(facts.Fact[*peerv1.Applications], facts.Fact[*peerv1.Applications]) facts.Fact[*peerv1.Applications] {
			return facts.Fact[*peerv1.Applications]{Said: &peerv1.Applications{Order: order(9), NotServing: reasons}}
		}); err != nil {
			t.Error(err)
		}
	}
	set(map[string]string{"10.0.0.1:80": "refused"})
	if got := kept["applications/"+web]; got != `{"10.0.0.1:80":"refused"}` { // the format that earlier releases read
		t.Errorf("kept is %s", got)
	}
	w = newWorld(t, kept)
	if own := w.Applications.Own(web); own.Order() != (facts.Order{}) || w.observed.NotServing != "10.0.0.1:80" {
		t.Errorf("after a restart it knows %v, and observes %+v", own.Said, w.observed)
	}
	w.hears("b", &peerv1.Proxy{Instance: "1", Applications: &peerv1.Applications{Order: order(1)}})
	if w.observed.NotServing != "" {
		t.Error("what was kept is newer than what another replica knows")
	}
	set(nil)
	if _, ok := kept["applications/"+web]; ok || len(kept) != 1 {
		t.Errorf("kept is %v", kept)
	}
}

// TestSuperseded checks whether the report of a lost replica is still needed.
func TestSuperseded(t *testing.T) {
	session := func(n int64) *peerv1.Session { return &peerv1.Session{Order: order(n)} }
	m := &peerv1.Proxy{Session: session(5), Plaintext: &peerv1.Plaintext{Order: order(5)}}
	newer := &peerv1.Plaintext{Order: order(6)}
	tests := map[string]struct {
		others []*peerv1.Proxy
		want   bool
	}{
		"no other one":             {[]*peerv1.Proxy{nil}, false},
		"one kind is newer":        {[]*peerv1.Proxy{{Session: session(6)}}, false},
		"both are newer":           {[]*peerv1.Proxy{{Session: session(6), Plaintext: newer}}, true},
		"newer at two replicas":    {[]*peerv1.Proxy{{Session: session(6)}, {Plaintext: newer}}, true},
		"one is as new":            {[]*peerv1.Proxy{{Session: session(5), Plaintext: newer}}, false},
		"another kind is newer":    {[]*peerv1.Proxy{{Session: session(6), Listeners: &peerv1.Listeners{Order: order(9)}}}, false},
		"of all of them, an older": {[]*peerv1.Proxy{{Session: session(6), Plaintext: &peerv1.Plaintext{Order: order(4)}}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := facts.Superseded(m, tc.others); got != tc.want {
				t.Errorf("Superseded() = %t, want %t", got, tc.want)
			}
		})
	}
}
