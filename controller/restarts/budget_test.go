package restarts

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// world is a cluster whose objects the test adds.
type world struct {
	*cluster
	t       *testing.T
	changes int
	log     bytes.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	w.cluster = newCluster(client, client.CoreV1().RESTClient(), 0, func() { w.changes++ }, func(watch.Key) {}, slog.New(slog.NewTextHandler(&w.log, nil)))
	return w
}

// add adds objects, and replaces earlier ones with the same names.
func (w *world) add(objects ...any) {
	w.t.Helper()
	for _, o := range objects {
		var err error
		switch o.(type) {
		case *corev1.Pod:
			err = w.pods.Add(o)
		case *appsv1.Deployment:
			err = w.deployments.Add(o)
		case *v1alpha1.RestartBudget:
			err = w.budgets.Add(o)
		default:
			w.t.Fatalf("no store of %T", o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// podNamed returns a guarded pod of Deployment shop/web, whose UID is its name.
func podNamed(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := guardedPod()
	p.Name, p.UID = name, types.UID(name)
	if change != nil {
		change(p)
	}
	return p
}

func newDeployment(replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
}

// budgetOf returns a RestartBudget of all pods in namespace shop.
func budgetOf(name string, change func(*v1alpha1.RestartBudgetSpec)) *v1alpha1.RestartBudget {
	b := &v1alpha1.RestartBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Generation: 1},
		Spec:       v1alpha1.RestartBudgetSpec{Selector: &v1alpha1.PodSelector{}},
	}
	change(&b.Spec)
	return b
}

func selecting(values ...v1alpha1.LabelValue) *v1alpha1.PodSelector {
	return &v1alpha1.PodSelector{MatchExpressions: []v1alpha1.LabelExpression{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
}

func TestReadBudget(t *testing.T) {
	type spec = v1alpha1.RestartBudgetSpec
	named := func(l restartbudget.Limit, perMinute int) restartbudget.Budget {
		l.Name = "shop/a"
		return restartbudget.Budget{Limit: l, PerMinute: perMinute}
	}
	tests := map[string]struct {
		change func(*spec)
		want   restartbudget.Budget
		away   agentv1.WhenAway_Policy
		after  time.Duration
	}{
		"a number":     {func(s *spec) { s.MaxUnavailable = new(intstr.FromInt32(0)) }, named(restartbudget.Limit{MaxUnavailable: &restartbudget.Amount{}}, 0), agentv1.WhenAway_HOLD, 0},
		"a share":      {func(s *spec) { s.MinAvailable = new(intstr.FromString("100%")) }, named(restartbudget.Limit{MinAvailable: &restartbudget.Amount{Value: 100, Percent: true}}, 0), agentv1.WhenAway_HOLD, 0},
		"a rate alone": {func(s *spec) { s.PerMinute = new(int32(3)) }, named(restartbudget.Limit{}, 3), agentv1.WhenAway_HOLD, 0},
		"hold":         {func(s *spec) { s.WhenAway = "hold" }, named(restartbudget.Limit{}, 0), agentv1.WhenAway_HOLD, 0},
		"slots":        {func(s *spec) { s.WhenAway = "slots" }, named(restartbudget.Limit{}, 0), agentv1.WhenAway_SLOTS, 0},
		"native":       {func(s *spec) { s.WhenAway, s.NativeAfter = "native", "1h30m" }, named(restartbudget.Limit{}, 0), agentv1.WhenAway_NATIVE, 90 * time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := readBudget(budgetOf("a", tc.change))
			if diff := cmp.Diff(tc.want, b.Budget); diff != "" || b.whenAway != tc.away || b.nativeAfter != tc.after || b.problem != "" || b.generation != 1 || !b.selector.Matches(labels.Set{"a": "b"}) {
				t.Errorf("readBudget() = %+v (-want +got):\n%s", b, diff)
			}
		})
	}
	b := readBudget(budgetOf("a", func(s *spec) { s.Selector, s.WhenAway = selecting("web"), "hold" }))
	if !b.selector.Matches(labels.Set{"app": "web"}) || b.selector.Matches(labels.Set{"app": "db"}) {
		t.Errorf("it selects %s", b.selector)
	}
}

// A budget that the CustomResourceDefinition should have rejected allows no restart, whatever else it contains.
func TestBudgetsThatAreNotValid(t *testing.T) {
	type spec = v1alpha1.RestartBudgetSpec
	for want, change := range map[string]func(*spec){
		`spec.maxUnavailable: "x"`:                             func(s *spec) { s.MaxUnavailable = new(intstr.FromString("x")) },
		`spec.maxUnavailable: "-1": must be a number of pods`:  func(s *spec) { s.MaxUnavailable = new(intstr.FromInt32(-1)) },
		`spec.minAvailable: "101%"`:                            func(s *spec) { s.MaxUnavailable, s.MinAvailable = nil, new(intstr.FromString("101%")) },
		`spec.minAvailable: "-5%"`:                             func(s *spec) { s.MaxUnavailable, s.MinAvailable = nil, new(intstr.FromString("-5%")) },
		"only one of them is allowed":                          func(s *spec) { s.MinAvailable = new(intstr.FromInt32(1)) },
		"at least one of maxUnavailable":                       func(s *spec) { s.MaxUnavailable, s.PerMinute, s.WhenAway, s.NativeAfter = nil, nil, "", "" },
		"spec.perMinute: 0: must be 1 or more":                 func(s *spec) { s.PerMinute = new(int32(0)) },
		`spec.whenAway: "wait": must be hold, slots or native`: func(s *spec) { s.WhenAway, s.NativeAfter = "wait", "" },
		`spec.nativeAfter: "59s": must be a duration from 1m`:  func(s *spec) { s.NativeAfter = "59s" },
		`spec.nativeAfter: "25h"`:                              func(s *spec) { s.NativeAfter = "25h" },
		`spec.nativeAfter: ""`:                                 func(s *spec) { s.NativeAfter = "" },
		"spec.nativeAfter: allowed only with whenAway native":  func(s *spec) { s.WhenAway = "" },
		"spec.selector: required":                              func(s *spec) { s.Selector = nil },
		`spec.selector: "Like" is not a valid label selector opera`: func(s *spec) {
			s.Selector.MatchExpressions = []v1alpha1.LabelExpression{{Key: "a", Operator: "Like"}}
		},
	} {
		b := readBudget(budgetOf("a", func(s *spec) {
			s.MaxUnavailable, s.PerMinute, s.WhenAway, s.NativeAfter = new(intstr.FromInt32(5)), new(int32(9)), "native", "5m"
			change(s)
		}))
		none := restartbudget.Budget{Limit: restartbudget.Limit{Name: "shop/a", MaxUnavailable: &restartbudget.Amount{}}}
		if diff := cmp.Diff(none, b.Budget); diff != "" || !strings.Contains(b.problem, want) || b.whenAway != agentv1.WhenAway_HOLD || !b.selector.Matches(labels.Set{"app": "web"}) {
			t.Errorf("readBudget() = %+v, want the problem %q (-want +got):\n%s", b, want, diff)
		}
	}
}

// A change of the status alone triggers nothing, and an invalid budget is logged once.
func TestChangesOfBudgets(t *testing.T) {
	w := newWorld(t)
	b := budgetOf("a", func(s *v1alpha1.RestartBudgetSpec) { s.MaxUnavailable = new(intstr.FromInt32(1)) })
	w.add(b)
	b = b.DeepCopy()
	b.Status.Held = 3
	w.add(b)
	if w.changes != 1 {
		t.Errorf("%d changes, want 1", w.changes)
	}
	b = b.DeepCopy() // another object, with the same name
	b.Spec.MaxUnavailable = new(intstr.FromString("x"))
	w.add(b)
	b = b.DeepCopy()
	b.Status.Held = 4
	w.add(b)
	if n := strings.Count(w.log.String(), "RestartBudget is invalid"); w.changes != 2 || n != 1 {
		t.Errorf("%d changes, want 2, and logged %d times, want once:\n%s", w.changes, n, w.log.String())
	}
}

// A workload has the budgets of its namespace that select one of its guarded pods.
func TestBudgetsOfWorkloads(t *testing.T) {
	w := newWorld(t)
	limit := func(selector *v1alpha1.PodSelector) func(*v1alpha1.RestartBudgetSpec) {
		return func(s *v1alpha1.RestartBudgetSpec) { s.Selector, s.MaxUnavailable = selector, new(intstr.FromInt32(1)) }
	}
	elsewhere := budgetOf("elsewhere", limit(&v1alpha1.PodSelector{}))
	elsewhere.Namespace = "other"
	w.add(
		newDeployment(3), elsewhere,
		budgetOf("old", limit(selecting("web"))), budgetOf("new", limit(selecting("web2"))), budgetOf("unguarded", limit(selecting("plain"))), budgetOf("all", limit(&v1alpha1.PodSelector{})),
		podNamed("a", nil), podNamed("b", nil),
		podNamed("c", func(p *corev1.Pod) { p.Labels["app"] = "web2" }), // of the next template
		podNamed("d", func(p *corev1.Pod) {
			unguard(p)
			p.Labels["app"] = "plain"
		}),
	)
	in, _ := w.input(nil)
	if len(in.Workloads) != 1 {
		t.Fatalf("input() = %+v", in)
	}
	for id, workload := range in.Workloads {
		var names []string
		for _, b := range workload.Budgets {
			names = append(names, b.Name)
		}
		if diff := cmp.Diff([]string{"shop/all", "shop/new", "shop/old"}, names); diff != "" || workload.Replicas != 3 || workload.MaxUnavailable(id) != 1 {
			t.Errorf("%v: %+v (-want +got):\n%s", id, workload, diff)
		}
	}
}

// Each result depends only on the labels of the pod, whichever pods were looked up before.
func TestSelection(t *testing.T) {
	w := newWorld(t)
	w.add(budgetOf("web", func(s *v1alpha1.RestartBudgetSpec) { s.Selector, s.WhenAway = selecting("web"), "hold" }))
	s := w.selectBudgets()
	id := restartbudget.WorkloadID{Kind: "StatefulSet", Namespace: "shop", Name: "web"}
	for i, app := range []string{"db", "web", "web", "db", "web"} {
		p := &pod{workload: id, labels: labels.Set{"app": app}}
		if got := len(s.of("shop", p)); (got == 1) != (app == "web") {
			t.Errorf("pod %d, %s, is selected by %d budgets", i, app, got)
		}
		if got := len(s.ofWorkload(id)); (got == 1) != (i > 0) {
			t.Errorf("after pod %d the workload is selected by %d budgets", i, got)
		}
		if got := s.of("other", p); len(got) > 0 {
			t.Errorf("a pod of another namespace is selected by %d budgets", len(got))
		}
	}
	if b := w.budgets.Get(watch.Key{Namespace: "shop", Name: "web"}); b == nil || s.ofWorkload(id)[0] != b {
		t.Error("the selection differs from the store")
	}
}
