package restarts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// one returns a budget of one pod, for pods with one of these values of the label app.
func one(apps ...v1alpha1.LabelValue) func(*budgetSpec) {
	return func(s *budgetSpec) { s.MaxUnavailable, s.Selector = new(intstr.FromInt32(1)), selecting(apps...) }
}

// podOfApp returns a guarded pod of the Deployment, with the label app.
func podOfApp(name, app string) *corev1.Pod {
	return podNamed(name, func(p *corev1.Pod) { p.Labels["app"], p.OwnerReferences[0].Name = app, app+"-5d4f" })
}

func TestBudgetStatuses(t *testing.T) {
	w := newWorld(t)
	w.add(
		podOfApp("web-1", "web"), podOfApp("web-2", "web"), podOfApp("db-1", "db"),
		podNamed("plain", unguard),
		budgetOf("both", one("web", "db")), budgetOf("web", one("web")), budgetOf("db", one("db")), budgetOf("none", one("mail")), budgetOf("bad", func(s *budgetSpec) { s.WhenAway = "soon" }),
	)
	now := time.Now().Truncate(time.Second)
	got := w.budgetStatuses(&progress{inProgress: map[string]int{"web-1": 1, "gone": 1}, held: map[string]int{"web-2": 2, "db-1": 1}}, now)
	for name, want := range map[string]struct {
		matched, inProgress, held int32
		status                    metav1.ConditionStatus
		reason, message           string
	}{
		"both": {3, 1, 3, "True", "Overlapping", "the strictest holds: pods of the same workloads are selected by bad, db, web"},
		"web":  {2, 1, 2, "True", "Overlapping", "the strictest holds: pods of the same workloads are selected by bad, both"},
		"db":   {1, 0, 1, "True", "Overlapping", "the strictest holds: pods of the same workloads are selected by bad, both"},
		"none": {0, 0, 0, "True", "NoPods", "it selects no guarded pod"},
		"bad":  {3, 1, 3, "False", "Invalid", `no pod that it selects restarts: spec.whenAway: "soon": must be hold, slots or native`},
	} {
		s := v1alpha1.RestartBudgetStatus{ObservedGeneration: 1, Matched: want.matched, InProgress: want.inProgress, Held: want.held, Conditions: []metav1.Condition{{
			Type: "Accepted", Status: want.status, Reason: want.reason, Message: want.message, ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(now),
		}}}
		if diff := cmp.Diff(s, got[watch.Key{Namespace: "shop", Name: name}].want); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The time of a condition changes with its status, not with its text.
func TestTransitionOfAccepted(t *testing.T) {
	b := readBudget(budgetOf("a", one("web")))
	first := time.Unix(1e9, 0)
	b.status.Conditions = []metav1.Condition{b.accepted(1, nil, first)}
	if c := b.accepted(0, nil, first.Add(time.Hour)); c.Reason != "NoPods" || !c.LastTransitionTime.Time.Equal(first) {
		t.Errorf("accepted() = %+v, want NoPods since %v", c, first)
	}
	b.problem = "spec.a: bad\nspec.b: bad"
	if c := b.accepted(1, nil, first.Add(time.Hour)); !c.LastTransitionTime.Time.Equal(first.Add(time.Hour)) || !strings.HasSuffix(c.Message, "spec.a: bad; spec.b: bad") {
		t.Errorf("accepted() = %+v, want a message of one line since an hour later", c)
	}
}

// With very many budgets a message stays short and stable.
func TestManyOverlappingBudgets(t *testing.T) {
	w := newWorld(t)
	for i := range 3 {
		w.add(podOfApp(fmt.Sprintf("pod-%d", i), fmt.Sprintf("app-%d", i)))
	}
	for i := range 30 {
		w.add(budgetOf(fmt.Sprintf("b-%02d", i), func(s *budgetSpec) { s.WhenAway = "hold" }))
	}
	for range 3 {
		c := w.budgetStatuses(&progress{}, time.Now())[watch.Key{Namespace: "shop", Name: "b-05"}].want.Conditions[0]
		if !strings.HasSuffix(c.Message, "selected by b-00, b-01, b-02, b-03, b-04, b-06, b-07, b-08, b-09, b-10 and others") {
			t.Errorf("message %q", c.Message)
		}
	}
}

// statusAPI is an API server that accepts patches.
type statusAPI struct {
	patches []string // path and body
	answer  int
}

func (a *statusAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.patches = append(a.patches, r.URL.Path+" "+string(body))
	if a.answer != http.StatusOK {
		http.Error(w, "no", a.answer)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"apiVersion":"sonde.dev/v1alpha1","kind":"RestartBudget","metadata":{"name":"a"}}`)
}

// newStatus returns a writer of a world's statuses to an API server, and its log.
func newStatus(t *testing.T, w *world, a *statusAPI) (*budgetStatus, *bytes.Buffer) {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: handled{a}, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := New(Options{Watching: client, Status: client.CoreV1().RESTClient(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	r.cluster = w.cluster
	return newBudgetStatus(r), &log
}

func TestStatusIsWrittenOnChange(t *testing.T) {
	w, a := newWorld(t), &statusAPI{answer: http.StatusOK}
	b := budgetOf("a", one("web"))
	w.add(podOfApp("web-1", "web"), b)
	s, log := newStatus(t, w, a)
	now := time.Unix(1e9, 0)
	s.write(t.Context(), &progress{held: map[string]int{"web-1": 1}}, now)
	if len(a.patches) != 1 || !strings.HasPrefix(a.patches[0], "/api/v1/namespaces/shop/restartbudgets/a/status ") {
		t.Fatalf("patches %q", a.patches)
	}
	var patch struct{ Status v1alpha1.RestartBudgetStatus }
	_, body, _ := strings.Cut(a.patches[0], " ")
	if err := json.Unmarshal([]byte(body), &patch); err != nil {
		t.Fatal(err)
	}
	b = b.DeepCopy()
	b.Status = patch.Status
	w.add(b) // as the watch does
	s.write(t.Context(), &progress{held: map[string]int{"web-1": 1}}, now.Add(time.Minute))
	if len(a.patches) != 1 {
		t.Errorf("written again without a change: %q", a.patches)
	}
	s.write(t.Context(), &progress{}, now.Add(time.Minute))
	if len(a.patches) != 2 || !strings.Contains(a.patches[1], `"held":0`) {
		t.Errorf("patches %q, want one more, with nothing held", a.patches)
	}
	if log.Len() > 0 {
		t.Errorf("log:\n%s", log)
	}
}

// A failed write is retried in each pass, and logged at a bounded rate.
func TestStatusIsTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		answer        int
		patches, logs int
	}{
		"refused":            {http.StatusForbidden, 6, 2},
		"gone":               {http.StatusNotFound, 6, 0},
		"an unknown trouble": {http.StatusTeapot, 3, 2}, // written for one budget in each pass
	} {
		t.Run(name, func(t *testing.T) {
			w, a := newWorld(t), &statusAPI{answer: tc.answer}
			w.add(podOfApp("web-1", "web"), budgetOf("a", one("web")), budgetOf("b", one("db")))
			s, log := newStatus(t, w, a)
			now := time.Now()
			for _, after := range []time.Duration{0, statusEvery, complainEvery} {
				s.write(t.Context(), &progress{}, now.Add(after))
			}
			if n := strings.Count(log.String(), "failed to write the status of a RestartBudget"); len(a.patches) != tc.patches || n != tc.logs {
				t.Errorf("%d patches, want %d, logged %d times, want %d:\n%s", len(a.patches), tc.patches, n, tc.logs, log)
			}
		})
	}
}

// The leader counts restarts in progress and held containers by pod.
func TestProgress(t *testing.T) {
	w := newWorld(t)
	w.add(newDeployment(2), podOfApp("web-1", "web"), podOfApp("web-2", "web"), budgetOf("a", one("web")))
	now := time.Now()
	asks := agentv1.ReportedLiveness{Report: asking("app"), At: now}
	in, _ := w.input(map[watch.Key]agentv1.ReportedLiveness{{Namespace: "shop", Name: "web-1"}: asks, {Namespace: "shop", Name: "web-2"}: asks})
	state := restartbudget.New()
	p := progressOf(state, state.Decide(now, in))
	uids := []string{"web-1", "web-2"}
	restarting, held := slices.IndexFunc(uids, func(uid string) bool { return p.inProgress[uid] == 1 }), slices.IndexFunc(uids, func(uid string) bool { return p.held[uid] == 1 })
	if len(p.inProgress) != 1 || len(p.held) != 1 || restarting == held || restarting < 0 || held < 0 {
		t.Errorf("progress %+v, want one of each", p)
	}
}
