package restarts

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

func TestGrantIsItsObject(t *testing.T) {
	at := time.Now().Truncate(time.Microsecond)
	want := restartbudget.Grant{
		ID:       restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: "4f8c7a52", Name: "app"}, Restarts: 2, Try: 1},
		Workload: restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: "web"}, Node: "node1", Template: "5d4f", DryRun: true,
		Granted: at, Spent: at.Add(time.Second), Ended: at.Add(2 * time.Second), Judged: at.Add(3 * time.Second), Outcome: restartbudget.Helped,
	}
	o := objectOf(want, watch.Key{Namespace: "shop", Name: "web-1"}, 7)
	o.Status = statusOf(want)
	got, err := grantOf(o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got.Grant); diff != "" || got.epoch != 7 || got.pod != (watch.Key{Namespace: "shop", Name: "web-1"}) {
		t.Errorf("grantOf() = %+v (-want +got):\n%s", got, diff)
	}
}

func TestNamesOfGrants(t *testing.T) {
	id := restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: "a", Name: strings.Repeat("c", 63)}, Restarts: 1 << 30, Try: 100}
	for _, pod := range []string{"web-1", strings.Repeat("p", 253), strings.Repeat("p.", 126) + "p"} {
		if problems := validation.IsDNS1123Subdomain(nameOf(pod, id)); len(problems) > 0 {
			t.Errorf("nameOf(%q) = %q: %v", pod, nameOf(pod, id), problems)
		}
	}
	other := id
	other.PodUID = "b" // of the same name, as in a StatefulSet
	if nameOf("web-1", id) == nameOf("web-1", other) {
		t.Error("the grants of two containers have the same name")
	}
}

func TestBadGrants(t *testing.T) {
	good := objectOf(restartbudget.Grant{
		ID: restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: "a", Name: "app"}}, Workload: restartbudget.WorkloadID{Kind: "Pod", Namespace: "shop", Name: "web"},
	}, watch.Key{Namespace: "shop", Name: "web"}, 1)
	if _, err := grantOf(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*v1alpha1.RestartGrant){
		"spec.workload":  func(g *v1alpha1.RestartGrant) { g.Spec.Workload = "web" },
		"podUID":         func(g *v1alpha1.RestartGrant) { g.Spec.PodUID = "" },
		"epoch":          func(g *v1alpha1.RestartGrant) { g.Spec.Epoch = 0 },
		"negative":       func(g *v1alpha1.RestartGrant) { g.Spec.Restarts = -1 },
		"status.outcome": func(g *v1alpha1.RestartGrant) { g.Status.Outcome = "lost" },
	} {
		bad := good.DeepCopy()
		change(bad)
		if _, err := grantOf(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("grantOf() = %v, want an error about %s", err, want)
		}
	}
}

// guardedPod returns a pod of a Deployment with one guarded container.
func guardedPod() *corev1.Pod {
	table := `[{"container":"app","type":"liveness","guarded":true,"httpGet":{"path":"/","port":8080}},{"container":"other","type":"liveness","httpGet":{"path":"/","port":8081}}]`
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web-5d4f-1", UID: "a", Labels: map[string]string{"app": "web", "pod-template-hash": "5d4f"},
			Annotations:     map[string]string{mesh.AnnotationGuardedLiveness: "enabled"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d4f", Controller: new(true)}},
		},
		Spec: corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{
			{Name: mesh.ContainerSidecar, Env: []corev1.EnvVar{{Name: mesh.EnvProbeTable, Value: table}}}, {Name: "app", Image: "web:1"}, {Name: "other", Image: "web:2"},
		}},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "app", RestartCount: 3}},
		},
	}
}

// unguard leaves the probes of a pod to the kubelet.
func unguard(p *corev1.Pod) { p.Spec.Containers[0].Env = nil }

func TestReadPod(t *testing.T) {
	want := restartbudget.Pod{
		Name: "web-5d4f-1", Node: "node1", Template: "5d4f", Ready: true, Containers: []restartbudget.Container{{Name: "app", Image: "web:1", Patience: 33 * time.Second, Restarts: 3}},
	}
	p, is := readPod(guardedPod())
	if diff := cmp.Diff(want, p.Pod); diff != "" || !is || p.workload.String() != "Deployment/shop/web" {
		t.Errorf("readPod() = %+v (-want +got):\n%s", p, diff)
	}
}

func TestReadOtherPods(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		holds  func(pod, bool) bool
	}{
		"ended": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, func(p pod, is bool) bool { return is && p.ended && !p.guarded() && p.instances[0].ended }},
		"ended, not guarded": {func(p *corev1.Pod) {
			unguard(p)
			p.Status.Phase = corev1.PodSucceeded
		}, func(_ pod, is bool) bool { return !is }},
		"not guarded": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Env[0].Value = strings.ReplaceAll(p.Spec.Containers[0].Env[0].Value, "true", "false")
		}, func(p pod, is bool) bool { return is && len(p.Containers) == 0 && p.Ready }},
		"guarded as it was made": {func(p *corev1.Pod) { p.Annotations = nil }, func(p pod, is bool) bool { return is && len(p.Containers) == 1 }},
		"broken table":           {func(p *corev1.Pod) { p.Spec.Containers[0].Env[0].Value = "{" }, func(p pod, is bool) bool { return is && len(p.Containers) == 0 }},
		"no owner":               {func(p *corev1.Pod) { p.OwnerReferences = nil }, func(p pod, _ bool) bool { return p.workload.String() == "Pod/shop/web-5d4f-1" }},
		"a ReplicaSet":           {func(p *corev1.Pod) { p.OwnerReferences[0].Name = "web" }, func(p pod, _ bool) bool { return p.workload.String() == "ReplicaSet/shop/web" }},
		"being deleted":          {func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }, func(p pod, _ bool) bool { return p.Terminating }},
		"not ready":              {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, func(p pod, _ bool) bool { return !p.Ready }},
		"a native sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[1:2], p.Spec.Containers[:1]
		}, func(p pod, _ bool) bool { return p.Containers[0].Image == "web:1" }},
		"a StatefulSet's": {func(p *corev1.Pod) {
			p.OwnerReferences[0].Kind = "StatefulSet"
			p.Labels = map[string]string{"controller-revision-hash": "r"}
		}, func(p pod, _ bool) bool { return p.workload.Kind == "StatefulSet" && p.Template == "r" }},
		"has not begun yet": {func(p *corev1.Pod) { p.Status = corev1.PodStatus{} }, func(p pod, is bool) bool { return is && p.Containers[0].Restarts == 0 && !p.Ready }},
	} {
		o := guardedPod()
		tc.change(o)
		if p, is := readPod(o); !tc.holds(p, is) {
			t.Errorf("%s: readPod() = %+v, %v", name, p, is)
		}
	}
}

func TestReadDisruption(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, MaxUnavailable: new(intstr.FromString("25%")), MinAvailable: new(intstr.FromInt32(2)),
	}}
	got, is := readDisruption(b)
	want := restartbudget.Limit{Name: "shop/web", MaxUnavailable: &restartbudget.Amount{Value: 25, Percent: true}, MinAvailable: &restartbudget.Amount{Value: 2}}
	if diff := cmp.Diff(want, got.limit); diff != "" || !is || !got.selector.Matches(labels.Set{"app": "web"}) || got.selector.Matches(labels.Set{"app": "db"}) {
		t.Errorf("readDisruption() = %+v, %v (-want +got):\n%s", got, is, diff)
	}
	b.Spec.Selector = nil
	if _, is := readDisruption(b); is {
		t.Error("a budget without a selector selects pods")
	}
}

// Reports of agents become requests, and show which restarts helped.
func TestLiveness(t *testing.T) {
	p, _ := readPod(guardedPod())
	at := time.Now()
	l := agentv1.ReportedLiveness{Report: asking("app", "other", "none"), At: at}
	want := []restartbudget.Request{{ContainerKey: restartbudget.ContainerKey{PodUID: "a", Name: "app"}, Workload: p.workload, Restarts: 3, Since: at}}
	if diff := cmp.Diff(want, requests(&p, l)); diff != "" {
		t.Errorf("requests() (-want +got):\n%s", diff)
	}
	if c := judge(p.Containers[0], l.Report); c.Passed != 0 {
		t.Errorf("a container that fails has passed after restart %d", c.Passed)
	}
	if c := judge(p.Containers[0], &agentv1.Liveness{Passing: []string{"app"}}); c.Passed != 3 {
		t.Errorf("a container that passes has passed after restart %d, want 3", c.Passed)
	}
}
