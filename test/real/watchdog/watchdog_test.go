package watchdog

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/watchdog"
)

// stays checks that the dependants do not change for longer than leases take to expire.
func (s *scene) stays(why string, d time.Duration) {
	s.t.Helper()
	time.Sleep(d)
	if order := s.taken(); len(order) > 0 {
		s.t.Errorf("%s: dependants were scaled: %q", why, order)
	}
}

// ordered checks the order in which dependants were scaled. Dependants in one text, separated by commas,
// belong to one level.
func (s *scene) ordered(want ...string) {
	s.t.Helper()
	got := s.taken()
	for _, level := range want {
		names := strings.Split(level, ", ")
		n := min(len(names), len(got))
		now := slices.Sorted(slices.Values(got[:n]))
		slices.Sort(names)
		if !slices.Equal(now, names) {
			s.t.Errorf("%q were scaled now, want %q", now, names)
		}
		got = got[n:]
	}
	if len(got) > 0 {
		s.t.Errorf("scaled as well: %q", got)
	}
}

// The path breaks and is repaired: dependants are scaled to 0 level by level, and back level by
// level.
func TestPathBreaks(t *testing.T) {
	s := newScene(t, "breaks", 5)
	s.watch("local: true")
	s.start("a")
	s.start("b") // a follower
	s.verdict("seen", "")
	s.stays("nodes are seen", time.Second)

	s.connect(false)
	s.scaled(0, 0, 0)
	o := s.verdict("lost", "all")
	if o.Status.LostSince == nil || o.Status.Epoch == 0 {
		t.Errorf("the status is %+v", o.Status)
	}
	s.ordered("mcm 0, ca 0", "kcm 0")
	for dependant, n := range map[string]int{"kcm": 2, "mcm": 1, "ca": 1} {
		if got, want := s.annotations(dependant), fmt.Sprintf("meltdown-protection-active= replicas=%d", n); got != want {
			t.Errorf("%s has %q, want %q", dependant, got, want)
		}
	}
	s.stays("nodes are lost, and all is done", 2*time.Second)

	s.connect(true)
	s.scaled(2, 1, 1)
	s.ordered("kcm 2", "mcm 1", "ca 1")
	must.Poll(t, "nothing to be left", func(ctx context.Context) error {
		o, err := s.object(ctx)
		if err == nil && (len(o.Status.Steps) > 0 || o.Status.Verdict != "seen" || o.Status.LostSince != nil) {
			err = fmt.Errorf("the status is %+v", o.Status)
		}
		return err
	})
	for _, dependant := range []string{"kcm", "mcm", "ca"} {
		if left := s.annotations(dependant); left != "" {
			t.Errorf("%s has %q", dependant, left)
		}
	}
	events, err := s.client.EventsV1().Events(s.name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for _, e := range events.Items {
		reasons = append(reasons, e.Reason)
	}
	for _, want := range []string{"NodesLost", "ScaledDown", "NodesSeen", "ScaledUp"} {
		if !slices.Contains(reasons, want) {
			t.Errorf("events are %q, want %s", reasons, want)
		}
	}
}

// The cluster's API server is stopped, or rejects requests as too many. The watchdog scales nothing, neither then nor
// right afterwards, although no lease was renewed meanwhile.
func TestAPIServerAway(t *testing.T) {
	s := newScene(t, "away", 4)
	p := newProxy(t, apiserver.OwnAddress(t))
	s.secret(p.kubeconfig(t))
	s.watch("kubeconfigSecretName: probe")
	s.start("a")
	s.verdict("seen", "")
	for _, tc := range []struct {
		cause  string
		refuse func(http.ResponseWriter, *http.Request) bool
	}{
		{"api-server-away", func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }},
		{"throttled", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return true
		}},
		{"throttled", func(w http.ResponseWriter, r *http.Request) bool { // only for the leases
			if strings.HasSuffix(r.URL.Path, "/leases") {
				http.Error(w, "too many requests", http.StatusTooManyRequests)
				return true
			}
			return false
		}},
		{"unreadable", func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "forbidden", http.StatusForbidden)
			return true
		}},
	} {
		p.set(tc.refuse, nil)
		s.connect(false)
		s.verdict("unknown", tc.cause)
		s.stays(tc.cause, longEnough)
		p.set(nil, nil)
		s.verdict("seen", "") // kubelets need longer than the first probe
		s.connect(true)
		s.stays("after "+tc.cause, time.Second)
	}

	s.connect(false) // while the API server is reachable, it is a loss
	s.scaled(0, 0, 0)
	s.taken()
	p.set(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, nil)
	s.verdict("unknown", "api-server-away")
	s.connect(true)
	s.stays("nothing is scaled up without sight", 2*time.Second)
	p.set(nil, nil)
	s.scaled(2, 1, 1)
}

// Kubeconfigs that are missing, invalid, refused or rotated.
func TestKubeconfigs(t *testing.T) {
	s := newScene(t, "kubeconfigs", 3)
	p := newProxy(t, apiserver.OwnAddress(t))
	s.watch("kubeconfigSecretName: probe")
	s.start("a")
	good := string(p.kubeconfig(t))
	probed := func(want string) {
		t.Helper()
		s.condition("Probed", "False", want)
	}
	probed(`"probe": must be an existing Secret`)
	s.secret([]byte(good))
	s.verdict("seen", "")
	s.secret([]byte(strings.Replace(good, p.address, "https://127.0.0.1:6443", 1)))
	probed("must not be an address of the host itself")
	s.secret([]byte(good))
	s.verdict("seen", "")
	s.secret([]byte("users: broken"))
	probed("must be a kubeconfig, in YAML or JSON")
	other := newProxy(t, apiserver.OwnAddress(t)) // rotated: another address and another CA
	s.secret(other.kubeconfig(t))
	s.verdict("seen", "")
	s.stays("of kubeconfigs", 0)
}

// Replicas that another client sets during a loss stay, and an ignored dependant is not scaled.
func TestReplicasOfOthers(t *testing.T) {
	s := newScene(t, "others", 3)
	s.watch("local: true")
	s.start("a")
	s.verdict("seen", "")
	patch := []byte(`{"metadata":{"annotations":{"dependency-watchdog.gardener.cloud/ignore-scaling":"true"}}}`)
	if _, err := s.client.AppsV1().Deployments(s.name).Patch(t.Context(), "ca", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.connect(false)
	s.scaled(0, 0, 1)
	s.setReplicas("kcm", 5)
	time.Sleep(2 * time.Second)
	s.scaled(5, 0, 1)
	s.connect(true)
	s.scaled(5, 1, 1)
	s.verdict("seen", "")
	if left := s.annotations("kcm"); left != "" {
		t.Errorf("kcm has %q", left)
	}
}

// A paused cluster gets a verdict, but nothing is scaled. A dry run scales nothing either.
func TestPausedAndDryRun(t *testing.T) {
	s := newScene(t, "paused", 3)
	s.watch("local: true")
	stop := s.start("a", func(o *watchdog.Options) { o.DryRun = true })
	s.verdict("seen", "")
	s.connect(false)
	s.verdict("lost", "all")
	s.stays("of a dry run", longEnough)
	pause := func(paused string) {
		t.Helper()
		if _, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/"+s.name, "application/merge-patch+json", `{"spec":{"paused":`+paused+`}}`); err != nil {
			t.Fatal(err)
		}
	}
	pause("true")
	stop()
	s.start("b") // without dry run
	s.verdict("lost", "all")
	s.stays("paused", longEnough)
	pause("false")
	s.scaled(0, 0, 0)
	s.connect(true)
	s.scaled(2, 1, 1)
}

// The leader is killed between two levels, while it scales down and while it scales up. The next leader continues,
// without a lost or repeated step.
func TestLeaderKilledBetweenLevels(t *testing.T) {
	s := newScene(t, "killed", 4)
	s.watch("local: true")
	p := newProxy(t, "127.0.0.1")
	dead := make(chan struct{})
	killed := func(after string) func(*http.Request) {
		return func(r *http.Request) {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/deployments/"+after+"/scale") {
				return
			}
			p.set(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }, nil) // the leader is disconnected
			close(dead)
		}
	}
	throughProxy := func(o *watchdog.Options) { o.Kubeconfig = p.file(t) }
	s.start("a", throughProxy)
	s.verdict("seen", "")
	p.set(nil, killed("mcm"))
	s.start("b")
	s.connect(false)
	<-dead
	first := s.verdict("lost", "all").Status.Epoch
	s.scaled(0, 0, 0)
	s.ordered("mcm 0, ca 0", "kcm 0")
	if o, err := s.object(t.Context()); err != nil || o.Status.Epoch <= first {
		t.Errorf("the status is %+v, %v, want an epoch after %d", o.Status, err, first)
	}
	for dependant, n := range map[string]int{"kcm": 2, "mcm": 1, "ca": 1} {
		if got, want := s.annotations(dependant), fmt.Sprintf("meltdown-protection-active= replicas=%d", n); got != want {
			t.Errorf("%s has %q, want %q", dependant, got, want)
		}
	}
	s.connect(true)
	s.scaled(2, 1, 1)
	s.ordered("kcm 2", "mcm 1", "ca 1")
}
