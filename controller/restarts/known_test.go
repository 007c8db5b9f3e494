package restarts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// readPods has r read eight pods, the last of which is not guarded, and nothing else.
func readPods(t *testing.T, r *Restarts) {
	t.Helper()
	for _, replace := range []func([]any, string) error{
		r.grants.Replace, r.cluster.pods.Replace, r.cluster.deployments.Replace, r.cluster.statefulSets.Replace, r.cluster.daemonSets.Replace, r.cluster.disruption.Replace, r.cluster.budgets.Replace,
	} {
		if err := replace(nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 8 {
		p := guardedPod()
		p.Name, p.UID = fmt.Sprint("web-", i), types.UID(fmt.Sprint("web-", i))
		if i == 7 {
			p.Annotations, p.Spec.Containers[0].Env = nil, nil
		}
		if err := r.cluster.pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReport has eight guarded pods of a Deployment: of one a restart is in progress, of one that is gone a grant was left, and restarts of another
// template did not help.
func TestReport(t *testing.T) {
	at := time.Now()
	failing := Failing{Container: "app", Since: at, Reason: "refused"}
	r := newPatching(t, &patched{})
	r.o.Liveness = func() map[watch.Key]Liveness {
		return map[watch.Key]Liveness{
			{Namespace: "shop", Name: "web-0"}: {Failing: []Failing{failing}}, {Namespace: "shop", Name: "web-1"}: {Passing: []string{"app"}},
		}
	}
	if _, err := r.Report(); err == nil || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("Report() before all is read: %v", err)
	}
	readPods(t, r)
	open, gone := madeGrant(web, "web-0", restartbudget.Open), madeGrant(web, "gone", restartbudget.Open)
	earlier := madeGrant(web, "earlier", restartbudget.Refunded)
	earlier.Spec.Pod, earlier.Spec.PodUID = "web-0", "web-0"
	open.Spec.Restarts = 3
	bad := []string{"bad-0", "bad-1"}
	r.put(t, open, gone, earlier)
	for _, name := range bad {
		g := madeGrant(web, name, restartbudget.Unhelpful)
		g.Spec.Template = "5d4f"
		r.put(t, g)
	}
	got, err := r.Report()
	if err != nil || len(got.Pods) != 7 {
		t.Fatalf("Report() = %+v, %v", got, err)
	}
	w := got.Workloads[web]
	want := restartbudget.Standing{Replicas: 8, Available: 7, MaxUnavailable: 2, Source: "the default, 25 %"}
	if diff := cmp.Diff(want, w.Standing); diff != "" {
		t.Errorf("standing (-want +got):\n%s", diff)
	}
	if len(w.Grants) != 5 || w.Grants[0].Pod != "web-0" || !w.Grants[0].InProgress || w.Grants[1].InProgress {
		t.Errorf("grants are %+v, want that of web-0 first, and none other in progress", w.Grants)
	}
	checkPods(t, got.Pods[0], got.Pods[1], &failing)
}

// checkPods compares a pod that fails, and one that passes.
func checkPods(t *testing.T, first, second Pod, failing *Failing) {
	t.Helper()
	wantPod := Pod{
		Key: watch.Key{Namespace: "shop", Name: "web-0"}, UID: "web-0", Node: "node1", Ready: true, Workload: web, Unhelpful: true,
		Containers: []Container{{Name: "app", Restarts: 3, Failing: failing, Grant: first.Containers[0].Grant}},
	}
	if diff := cmp.Diff(wantPod, first); diff != "" || first.Containers[0].Grant == nil || first.Containers[0].Grant.ID.Restarts != 3 {
		t.Errorf("the first pod has grant %+v (-want +got):\n%s", first.Containers[0].Grant, diff)
	}
	if c := second.Containers[0]; !c.Passing || c.Failing != nil || c.Grant != nil {
		t.Errorf("the container that passes is %+v", c)
	}
}

func TestWhyUnguarded(t *testing.T) {
	for want, change := range map[string]func(*corev1.Pod){
		"it has ended":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"it has no sidecar": func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] },
		"it has no annotation sonde.dev/guarded-liveness: that of its namespace is for pods that are made after it": func(p *corev1.Pod) {
			unguard(p)
			p.Annotations = nil
		},
		`its annotation sonde.dev/guarded-liveness is "disabled"`: func(p *corev1.Pod) {
			unguard(p)
			p.Annotations[mesh.AnnotationGuardedLiveness] = "disabled"
		},
		"none of its containers has a liveness probe that can be guarded: sondectl probes explain says why": unguard,
		"this replica of the control plane has not read it yet":                                             func(*corev1.Pod) {},
	} {
		p := guardedPod()
		p.Labels[mesh.LabelMesh] = "default"
		change(p)
		if got := whyUnguarded(p); got != want {
			t.Errorf("whyUnguarded() = %q, want %q", got, want)
		}
	}
	if got := whyUnguarded(guardedPod()); got != "it has no sidecar" {
		t.Errorf("of a pod that is not in the mesh: %q", got)
	}
}
