package restarts

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// selects returns a selector with that many labels and expressions, and with keys and values of that length.
func selects(matching, expressions, values, length int) *v1alpha1.PodSelector {
	text := func(i int) string { return fmt.Sprintf("%s%04d", strings.Repeat("v", length-4), i) }
	s := &v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{}}
	for i := range matching {
		s.MatchLabels[text(i)] = v1alpha1.LabelValue(text(i))
	}
	for i := range expressions {
		e := v1alpha1.LabelExpression{Key: text(i), Operator: metav1.LabelSelectorOpIn}
		for j := range values {
			e.Values = append(e.Values, v1alpha1.LabelValue(text(j)))
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// A selector that is too large is not kept, and its budget holds all restarts of the namespace.
func TestSelectorsAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		selector *v1alpha1.PodSelector
		want     string
	}{
		"the most labels":      {selects(16, 0, 0, 5), ""},
		"too many labels":      {selects(17, 0, 0, 5), "spec.selector: too large: 17 labels in matchLabels, at most 16 are allowed"},
		"the most expressions": {selects(0, 16, 4, 5), ""},
		"too many expressions": {selects(0, 17, 1, 5), "spec.selector: too large: 17 matchExpressions, at most 16 are allowed"},
		"the most values":      {selects(0, 1, 64, 5), ""},
		"too many values":      {selects(0, 5, 13, 5), "spec.selector: too large: 65 values of matchExpressions, at most 64 are allowed"},
		"the most bytes":       {selects(16, 16, 1, 63), ""},
		"too many bytes":       {selects(16, 16, 3, 63), "spec.selector: too large: 6048 bytes of keys and values, at most 4096 are allowed"},
		"a megabyte":           {selects(0, 1, 18_000, 63), "spec.selector: too large: 18000 values of matchExpressions, at most 64 are allowed"},
		"a value of a megabyte": {
			&v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{"app": v1alpha1.LabelValue(strings.Repeat("v", 1<<20))}},
			"spec.selector: too large: 1048579 bytes of keys and values, at most 4096 are allowed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := readBudget(budgetOf("a", func(s *budgetSpec) { s.Selector, s.MaxUnavailable = tc.selector, new(intstr.FromInt32(1)) }))
			if b.problem != tc.want || b.tooLarge != (tc.want != "") || b.selector.Empty() != (tc.want != "") {
				t.Errorf("problem %q, want %q, too large: %t, it selects %.80s", b.problem, tc.want, b.tooLarge, b.selector)
			}
			none := restartbudget.Budget{Limit: noneAllowed("shop/a")}
			if tc.want != "" && !cmp.Equal(b.Budget, none) {
				t.Errorf("it allows %+v, want no restart", b.Budget)
			}
		})
	}
}

// keptBytes is the maximum memory of a RestartBudget, as documented in docs/guarded-liveness.md.
const keptBytes = 12 << 10

// The memory of a budget is bounded, whatever its content.
func TestMemoryOfBudgets(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, change := range map[string]func(*v1alpha1.RestartBudget){
		"the largest selector": func(b *v1alpha1.RestartBudget) { b.Spec.Selector = selects(16, 16, 1, 63) },
		"the most values":      func(b *v1alpha1.RestartBudget) { b.Spec.Selector = selects(16, 16, 4, 30) },
		"a megabyte of values": func(b *v1alpha1.RestartBudget) { b.Spec.Selector = selects(0, 1, 18_000, 63) },
		"a wrong selector": func(b *v1alpha1.RestartBudget) {
			b.Spec.Selector.MatchExpressions = []v1alpha1.LabelExpression{{Key: "app", Operator: metav1.LabelSelectorOperator(strings.Clone(long))}}
		},
		"long fields": func(b *v1alpha1.RestartBudget) {
			b.Spec.MaxUnavailable, b.Spec.NativeAfter = new(intstr.FromString(strings.Clone(long))), strings.Clone(long)
		},
		"metadata": func(b *v1alpha1.RestartBudget) {
			b.Annotations, b.Labels = map[string]string{"a": strings.Clone(long)}, map[string]string{"a": strings.Clone(long)}
			b.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Clone(long)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 50
			w := newWorld(t)
			before := heapBytes()
			for i := range n {
				b := budgetOf(fmt.Sprint("b", i), func(s *budgetSpec) { s.WhenAway = "hold" })
				change(b)
				w.add(b)
			}
			kept := (heapBytes() - before) / n
			t.Logf("%.0f bytes per budget", kept)
			if kept > keptBytes {
				t.Errorf("%.0f bytes of each budget are kept, want at most %d", kept, keptBytes)
			}
			runtime.KeepAlive(w)
		})
	}
}

// agedBudgets adds budgets for one pod of app <number>, each a second older than the previous one.
func (w *world) agedBudgets(n int) {
	w.t.Helper()
	for i := range n {
		b := budgetOf(fmt.Sprintf("b%04d", i), one(v1alpha1.LabelValue(strconv.Itoa(i))))
		b.CreationTimestamp = metav1.NewTime(time.Unix(int64(1e9-i), 0))
		w.add(b)
	}
}

// Only the oldest budgets of a namespace are used. While there are more, no container in the namespace restarts; other
// namespaces are not affected.
func TestBudgetsBeyondTheMost(t *testing.T) {
	w := newWorld(t)
	w.agedBudgets(maxBudgets + 2)
	elsewhere := budgetOf("a", one("web"))
	elsewhere.Namespace = "other"
	w.add(elsewhere, podOfApp("web-1", "web"), podNamed("other", func(p *corev1.Pod) {
		p.Namespace, p.Labels["app"] = "other", "web"
	}))
	budgets := func() map[string][]string {
		in, _ := w.input(nil)
		names := map[string][]string{}
		for id, workload := range in.Workloads {
			for _, b := range workload.Budgets {
				names[id.Namespace] = append(names[id.Namespace], fmt.Sprint(b.Name, " ", b.MaxUnavailable.Value))
			}
		}
		return names
	}
	if diff := cmp.Diff(map[string][]string{"shop": {"shop/b0001 0"}, "other": {"other/a 1"}}, budgets()); diff != "" {
		t.Errorf("budgets (-want +got):\n%s", diff)
	}
	statuses := w.budgetStatuses(&progress{}, time.Now())
	reasons := func(name string) string {
		c := statuses[watch.Key{Namespace: "shop", Name: name}].want.Conditions[0]
		return c.Reason + " " + c.Message
	}
	const beyond = "Invalid no pod that it selects restarts: only the 250 oldest RestartBudgets of a namespace count, and this one counts as if it selected all pods"
	for name, want := range map[string]string{"b0000": beyond, "b0001": beyond, "b0002": "NoPods it selects no guarded pod", "b0251": "NoPods it selects no guarded pod"} {
		if got := reasons(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := w.unusedBudgets(); got[notUsedTooMany] != 2 || got[notUsedInvalid]+got[notUsedTooLarge] != 0 {
		t.Errorf("invalid budgets %v, want 2 too_many", got)
	}
	for _, gone := range []string{"b0100", "b0101"} {
		if err := w.budgets.Delete(budgetOf(gone, one("web"))); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string][]string{"other": {"other/a 1"}}, budgets()); diff != "" {
		t.Errorf("budgets after a deletion (-want +got):\n%s", diff)
	}
}

// Of budgets with the same creation time, the first by name are used, whatever the order in which they arrive.
func TestBudgetsOfOneAge(t *testing.T) {
	var want []string
	for range 3 {
		w := newWorld(t)
		for _, i := range rand.Perm(maxBudgets + 1) {
			w.add(budgetOf(fmt.Sprintf("b%04d", i), one("web")))
		}
		var got []string
		for _, b := range w.selectBudgets().beyond["shop"] {
			got = append(got, b.name)
		}
		if want = []string{fmt.Sprintf("b%04d", maxBudgets)}; !slices.Equal(got, want) {
			t.Errorf("beyond the bound are %q, want %q", got, want)
		}
	}
}

// Only the oldest PodDisruptionBudgets are used. While there are more, workloads without a RestartBudget do not
// restart.
func TestDisruptionBudgetsBeyondTheMost(t *testing.T) {
	w := newWorld(t)
	w.add(podOfApp("web-1", "web"))
	add := func(n int) {
		for i := range n {
			if err := w.disruption.Add(&policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("p%04d", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(i), 0))},
				Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selectorOf(selecting("web")), MaxUnavailable: new(intstr.FromInt32(3))},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tc := range []struct{ budgets, want int }{{maxDisruptions, 3}, {maxDisruptions + 2, 0}} {
		add(tc.budgets)
		in, _ := w.input(nil)
		for id, workload := range in.Workloads {
			if got := workload.MaxUnavailable(id); got != tc.want {
				t.Errorf("with %d budgets %d pods may be unavailable, want %d", tc.budgets, got, tc.want)
			}
		}
	}
}

// A PodDisruptionBudget that is too large applies to all pods of its namespace.
func TestLargeDisruptionBudgets(t *testing.T) {
	w := newWorld(t)
	w.add(podOfApp("web-1", "web"))
	if err := w.disruption.Add(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "large"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: selectorOf(selects(0, 1, 18_000, 63)), MaxUnavailable: new(intstr.FromInt32(0))},
	}); err != nil {
		t.Fatal(err)
	}
	in, _ := w.input(nil)
	for id, workload := range in.Workloads {
		if workload.MaxUnavailable(id) != 0 {
			t.Errorf("%v may lose %d pods, want 0", id, workload.MaxUnavailable(id))
		}
	}
	if !strings.Contains(w.log.String(), "18000 values of matchExpressions, at most 64 are allowed") {
		t.Errorf("log:\n%s", w.log.String())
	}
}

// The index finds the same selectors as a comparison with each of them.
func TestSelectionIsThatOfTheSelectors(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 74))
	name := func(of string) string { return fmt.Sprint(of, random.IntN(4)) }
	operators := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist}
	matched := 0
	for range 300 {
		w := newWorld(t)
		for i := range 10 {
			s := &v1alpha1.PodSelector{MatchLabels: map[string]v1alpha1.LabelValue{}}
			for range random.IntN(3) {
				s.MatchLabels[name("k")] = v1alpha1.LabelValue(name("v"))
			}
			for range random.IntN(3) {
				e := v1alpha1.LabelExpression{Key: name("k"), Operator: operators[random.IntN(len(operators))]}
				if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
					e.Values = []v1alpha1.LabelValue{v1alpha1.LabelValue(name("v")), v1alpha1.LabelValue(name("v"))}
				}
				s.MatchExpressions = append(s.MatchExpressions, e)
			}
			w.add(budgetOf(fmt.Sprint("b", i), func(spec *budgetSpec) { spec.Selector, spec.WhenAway = s, "hold" }))
		}
		budgets := w.selectBudgets()
		for i := range 5 {
			p := &pod{workload: restartbudget.WorkloadID{Kind: "Pod", Namespace: "shop", Name: strconv.Itoa(i)}, labels: labels.Set{}}
			for range random.IntN(5) {
				p.labels[name("k")] = name("v")
			}
			var want, got []string
			for _, b := range budgets.namespaces["shop"].objects {
				if b.selector.Matches(p.labels) {
					want = append(want, b.name)
				}
			}
			for _, b := range budgets.of("shop", p) {
				got = append(got, b.name)
			}
			if matched += len(want); !slices.Equal(got, want) {
				t.Fatalf("pod with %v is selected by %q, want %q", p.labels, got, want)
			}
		}
	}
	if matched < 1000 {
		t.Errorf("%d matches in all: the test shows little", matched)
	}
}

// An invalid budget gets an event with its new status, at a bounded rate, and delays no other status.
func TestInvalidBudgetsAreTold(t *testing.T) {
	w, a := newWorld(t), &statusAPI{answer: http.StatusOK}
	for i := range maxInvalid + 5 {
		w.add(budgetOf(fmt.Sprint("bad", i), func(s *budgetSpec) { s.Selector, s.MaxUnavailable = selects(17, 0, 0, 5), new(intstr.FromInt32(1)) }))
	}
	w.add(budgetOf("good", one("web")))
	s, _ := newStatus(t, w, a)
	var recorded []events.Event
	s.o.Record = func(e events.Event) { recorded = append(recorded, e) }
	s.write(t.Context(), &progress{}, time.Now())
	if len(recorded) != maxInvalid || len(a.patches) != maxInvalid+1 || !slices.ContainsFunc(a.patches, func(p string) bool { return strings.Contains(p, "/good/status") }) {
		t.Fatalf("%d events and %d patches, want %d and one more, of the good one", len(recorded), len(a.patches), maxInvalid)
	}
	const note = "no pod that it selects restarts: spec.selector: too large: 17 labels in matchLabels, at most 16 are allowed"
	if e := recorded[0]; e.Kind != "RestartBudget" || e.Namespace != "shop" || e.Reason != "RestartBudgetInvalid" || e.Normal || e.Note != note {
		t.Errorf("event %+v", e)
	}
}
