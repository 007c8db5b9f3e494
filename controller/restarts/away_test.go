package restarts

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

type budgetSpec = v1alpha1.RestartBudgetSpec

func slots(maxUnavailable string) func(*budgetSpec) {
	return func(s *budgetSpec) { s.WhenAway, s.MaxUnavailable = "slots", new(intstr.Parse(maxUnavailable)) }
}

func native(after string) func(*budgetSpec) {
	return func(s *budgetSpec) { s.WhenAway, s.NativeAfter = "native", after }
}

// away returns, by name, what pods of namespace shop do while the control plane is unreachable. It omits pods that hold
// failures.
func (w *world) away() map[string]*agentv1.WhenAway {
	all := map[string]*agentv1.WhenAway{}
	for key, policy := range w.policies(restartbudget.Settings{}) {
		all[key.Name] = policy.GetWhenAway()
	}
	return all
}

// pods adds that many guarded pods.
func (w *world) addPods(n int) {
	for i := range n {
		w.add(podNamed(fmt.Sprintf("pod-%d", i), nil))
	}
}

func TestStrictestPolicy(t *testing.T) {
	inTurn := &agentv1.WhenAway{
		Policy: agentv1.WhenAway_SLOTS, After: durationpb.New(time.Minute), Turn: 0, Turns: 2, TurnTime: durationpb.New(55 * time.Second),
	}
	nativeAfter := func(d time.Duration) *agentv1.WhenAway {
		return &agentv1.WhenAway{Policy: agentv1.WhenAway_NATIVE, After: durationpb.New(d)}
	}
	limit := func(s *budgetSpec) { s.MaxUnavailable = new(intstr.FromInt32(1)) }
	tests := map[string]struct {
		budgets []func(*budgetSpec)
		want    *agentv1.WhenAway // nil to hold
	}{
		"none":                       {nil, nil},
		"hold":                       {[]func(*budgetSpec){func(s *budgetSpec) { s.WhenAway = "hold" }}, nil},
		"hold is the default":        {[]func(*budgetSpec){limit}, nil},
		"native":                     {[]func(*budgetSpec){native("5m")}, nativeAfter(5 * time.Minute)},
		"the longest of native ones": {[]func(*budgetSpec){native("5m"), native("1h"), native("10m")}, nativeAfter(time.Hour)},
		"slots":                      {[]func(*budgetSpec){slots("1")}, inTurn},
		"slots over native":          {[]func(*budgetSpec){native("1h"), slots("1"), native("5m")}, inTurn},
		"hold over all":              {[]func(*budgetSpec){native("1h"), slots("1"), limit}, nil},
		"not valid":                  {[]func(*budgetSpec){native("1h"), native("soon")}, nil},
		"of other pods":              {[]func(*budgetSpec){native("5m"), func(s *budgetSpec) { s.Selector, s.WhenAway = selecting("db"), "hold" }}, nativeAfter(5 * time.Minute)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add(newDeployment(1), podNamed("a", nil), podNamed("plain", unguard))
			for i, change := range tc.budgets {
				w.add(budgetOf(strconv.Itoa(i), change))
			}
			if diff := cmp.Diff(tc.want, w.away()["a"], protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if policy, is := w.away()["plain"]; is {
				t.Errorf("a pod that is not guarded gets %+v", policy)
			}
		})
	}
}

// Each pod of a workload has a turn. In a turn, no more pods restart than may be unavailable, and an empty turn follows
// each used one.
func TestTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		pods           int
		maxUnavailable string
		turns          uint32
		inOne          int
	}{
		"one by one":           {5, "1", 10, 1},
		"in twos":              {5, "2", 6, 2},
		"a share":              {10, "25%", 10, 2},
		"all at once":          {3, "100%", 2, 3},
		"more than there are":  {3, "50", 2, 3},
		"a share of less than": {3, "10%", 6, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add(newDeployment(int32(tc.pods)), budgetOf("a", slots(tc.maxUnavailable)))
			w.addPods(tc.pods)
			inTurn := map[uint32]int{}
			for pod, away := range w.away() {
				if away.GetPolicy() != agentv1.WhenAway_SLOTS || away.GetTurns() != tc.turns || away.GetTurn()%2 != 0 || away.GetTurn() >= away.GetTurns() {
					t.Errorf("%s: %+v, want even turns of %d", pod, away, tc.turns)
				}
				inTurn[away.GetTurn()]++
			}
			total, most := 0, 0
			for _, n := range inTurn {
				total, most = total+n, max(most, n)
			}
			if total != tc.pods || most != tc.inOne {
				t.Errorf("turns of pods: %v, want %d pods, at most %d in one", inTurn, tc.pods, tc.inOne)
			}
		})
	}
}

// All replicas compute the same turns, whatever the order of events, and in each release.
func TestTurnsAreTheSameEverywhere(t *testing.T) {
	var first map[string]*agentv1.WhenAway
	for range 5 {
		w := newWorld(t)
		w.add(newDeployment(8), budgetOf("a", slots("2")))
		for _, i := range rand.Perm(8) {
			w.add(podNamed(fmt.Sprintf("pod-%d", i), nil))
		}
		if first == nil {
			first = w.away()
		}
		if diff := cmp.Diff(first, w.away(), protocmp.Transform()); diff != "" {
			t.Errorf("-first +now:\n%s", diff)
		}
	}
	turns := map[string]uint32{}
	for pod, away := range first {
		turns[pod] = away.GetTurn()
	}
	want := map[string]uint32{"pod-0": 2, "pod-1": 0, "pod-2": 2, "pod-3": 4, "pod-4": 0, "pod-5": 4, "pod-6": 6, "pod-7": 6}
	if diff := cmp.Diff(want, turns); diff != "" {
		t.Errorf("an earlier release computes other turns (-want +got):\n%s", diff)
	}
}

func TestWhoHasATurn(t *testing.T) {
	w := newWorld(t)
	w.add(newDeployment(2), budgetOf("a", slots("1")),
		podNamed("a", nil),
		podNamed("next", func(p *corev1.Pod) { // of the next template
			p.Labels["pod-template-hash"], p.OwnerReferences[0].Name = "77aa", "web-77aa"
		}),
		podNamed("suspended", func(p *corev1.Pod) { p.Annotations[mesh.AnnotationLiveness] = "suspended" }),
		podNamed("ends", func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }),
		podNamed("plain", unguard),
		podNamed("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
	)
	all, turns := w.away(), map[uint32]bool{}
	for _, pod := range []string{"a", "next", "suspended"} {
		if all[pod].GetTurns() != 6 {
			t.Errorf("%s: %+v, want one of 6 turns", pod, all[pod])
		}
		turns[all[pod].GetTurn()] = true
	}
	if len(all) != 3 || len(turns) != 3 {
		t.Errorf("turns %+v, want one for each of 3 pods", all)
	}
}

// Pods hold their failures if they have no rank, or if no pod may be unavailable.
func TestNoTurns(t *testing.T) {
	for name, build := range map[string]func(*world){
		"none may be unavailable": func(w *world) { w.add(newDeployment(2), budgetOf("a", slots("0"))) },
		"another budget of none": func(w *world) {
			w.add(newDeployment(2), budgetOf("a", slots("1")), budgetOf("b", func(s *budgetSpec) { s.WhenAway, s.MinAvailable = "slots", new(intstr.FromString("100%")) }))
		},
		"desired pods are not known": func(w *world) { w.add(budgetOf("a", slots("1"))) },
		"an owner that is not known": func(w *world) {
			w.add(budgetOf("a", slots("1")), podNamed("pod-0", func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "CloneSet" }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.addPods(2)
			build(w)
			if all := w.away(); len(all) != 0 {
				t.Errorf("%+v, want all to hold", all)
			}
		})
	}
}

// A pod without an owner is a workload of its own, with its own turns.
func TestTurnOfAPodWithoutOwner(t *testing.T) {
	w := newWorld(t)
	w.add(budgetOf("a", slots("1")), podNamed("a", func(p *corev1.Pod) { p.OwnerReferences = nil }), podNamed("b", func(p *corev1.Pod) { p.OwnerReferences = nil }))
	for _, pod := range []string{"a", "b"} {
		if away := w.away()[pod]; away == nil || away.GetTurn() != 0 || away.GetTurns() != 2 {
			t.Errorf("%s: %+v, want the first of two turns", pod, away)
		}
	}
}

// A turn lasts as long as the slowest probe of the workload needs to restart its container.
func TestTurnTime(t *testing.T) {
	const fastest = `[{"container":"app","type":"liveness","guarded":true,"failureThreshold":1,"periodSeconds":1,"httpGet":{"port":80}}]`
	for table, want := range map[string]time.Duration{
		fastest: 30 * time.Second,
		`[{"container":"app","type":"liveness","guarded":true,"httpGet":{"port":80}}]`: 55 * time.Second, // by the defaults: 5 × (10 + 1)
		`[{"container":"app","type":"liveness","guarded":true,"httpGet":{"port":80}},{"container":"other","type":"liveness","guarded":true,"failureThreshold":6,"periodSeconds":20,"timeoutSeconds":5,"httpGet":{"port":81}}]`: 150 * time.Second,
		`[{"container":"app","type":"liveness","guarded":true,"httpGet":{"port":80}},{"container":"other","type":"readiness","timeoutSeconds":500,"httpGet":{"port":81}}]`:                                                     55 * time.Second,
		`[{"container":"app","type":"liveness","guarded":true,"failureThreshold":2147483647,"periodSeconds":2147483647,"timeoutSeconds":2147483647,"httpGet":{"port":80}}]`:                                                    24 * time.Hour,
	} {
		w := newWorld(t)
		with := func(table string) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = table }
		}
		w.add(newDeployment(2), budgetOf("a", slots("1")), podNamed("fast", with(fastest)), podNamed("b", with(table)))
		all := w.away()
		for _, pod := range []string{"fast", "b"} {
			if all[pod].GetTurnTime().AsDuration() != want {
				t.Errorf("%s beside %s: a turn of %v, want %v", pod, table, all[pod].GetTurnTime().AsDuration(), want)
			}
		}
	}
}

// If a pod's rank changes, the pods whose turn changes are informed. A change without effect is not sent.
func TestTurnsAreTold(t *testing.T) {
	w := newWorld(t)
	w.add(newDeployment(3), budgetOf("a", slots("1")))
	w.addPods(3)
	told := map[string]int{}
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{Watching: client, Agents: func() Agents { return podAgents{tell: func(pod watch.Key) { told[pod.Name]++ }} }, Proxy: proxyOf, Logger: slog.New(slog.DiscardHandler)})
	for range 2 {
		r.setPolicies(w.policies(restartbudget.Settings{}))
	}
	if diff := cmp.Diff(map[string]int{"pod-0": 1, "pod-1": 1, "pod-2": 1}, told); diff != "" {
		t.Errorf("woken (-want +got):\n%s", diff)
	}
	w.addPods(4)
	r.setPolicies(w.policies(restartbudget.Settings{}))
	if diff := cmp.Diff(map[string]int{"pod-0": 2, "pod-1": 2, "pod-2": 2, "pod-3": 1}, told); diff != "" {
		t.Errorf("woken after one more pod (-want +got):\n%s", diff)
	}
}
