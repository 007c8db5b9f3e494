//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestGuardedLiveness makes the liveness probes of all pods of a Deployment fail at once, and then again together
// with their readiness probes, so that no pod serves anyway. They restart in turn: by default, at most a quarter at
// once. Without the guard, all pods restart together.
func TestGuardedLiveness(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	const pods, budget = 10, 2
	guarded := n.newFleet("guarded", pods, "enabled")
	native := n.newFleet("native", pods, "disabled", func(template *corev1.PodTemplateSpec) { template.Labels[join] = "disabled" })
	guarded.watch()
	native.watch()
	guarded.fail(false)
	native.fail(false)
	native.waitHealed()
	native.check(pods)
	if native.mostRestarting <= budget {
		t.Errorf("at most %d pods restarted at once without the guard: this test sees nothing", native.mostRestarting)
	}
	guarded.waitHealed()
	guarded.check(budget)
	// A machine that stalls for seconds makes pods unready that do not restart, so the test makes several
	// attempts.
	for attempt := 1; guarded.mostDown > budget; attempt++ {
		if text := fmt.Sprintf("%d guarded pods were not Ready at once:\n  %s", guarded.mostDown, guarded.worst); attempt < attempts {
			t.Log(text)
		} else {
			t.Fatal(text)
		}
		guarded.fail(false)
		guarded.waitHealed()
		guarded.check(budget)
	}
	guarded.fail(true)
	guarded.waitHealed()
	guarded.check(budget)
}

// TestGuardedBadPath has a liveness probe that never passes, as after a rollout with a wrong port: two containers
// restart, and then none.
func TestGuardedBadPath(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	const nobody = 7999
	f := n.newFleet("web", 4, "enabled", func(template *corev1.PodTemplateSpec) {
		template.Spec.Containers[0].LivenessProbe = &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(nobody)}}, PeriodSeconds: 1, FailureThreshold: 2,
		}
	})
	f.watch()
	f.waitRestarts(2)
	pass(t, 30*time.Second)
	if got, _ := f.restarts(); got != 2 {
		t.Errorf("%d restarts, want two", got)
	}
}

// TestGuardedContainers makes two containers of one pod fail at once: they restart one after the
// other.
func TestGuardedContainers(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	p := newPod("two", "node2")
	p.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	p.Annotations["traffic.kuma.io/exclude-inbound-ports"] = "9800,9801"
	second := newContainer("second")
	second.Args = []string{"--name=second", "--http=:8090", "--grpc=:8091", "--tcp=:8092", "--control=:9801"}
	p.Spec.Containers = append(p.Spec.Containers, second)
	for i, port := range []int32{portHTTP, 8090} {
		c := &p.Spec.Containers[i]
		c.LivenessProbe = healthz(2)
		c.LivenessProbe.HTTPGet.Port = intstr.FromInt32(port)
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}, PeriodSeconds: 1, InitialDelaySeconds: 3}
	}
	n.create(p)
	n.waitReady("two")
	n.setHealthz("two", http.StatusInternalServerError)
	app{t, mesh.JoinHostPort(n.pod("two").Status.PodIP, 9801)}.do("PUT", "/http", map[string][]string{"status": {"500"}}, nil)
	n.waitPod("two", "with two restarts", func(p *corev1.Pod) error {
		one, two := status(p, "app"), status(p, "second")
		if !one.Ready && !two.Ready {
			t.Error("both containers restart at once")
		}
		if one.RestartCount != 1 || two.RestartCount != 1 || !one.Ready || !two.Ready {
			return fmt.Errorf("%+v", summary(p))
		}
		return nil
	})
}

// TestGuardedHeld makes the liveness probe of one of two pods fail while the pod may not restart: it gets no calls,
// because the other pod serves.
func TestGuardedHeld(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	f := n.newFleet("web", 2, "enabled")
	n.create(newService("web"), newPod("client", "node1"))
	f.watch()
	n.waitReady("client")
	held := n.podsOf("web")[0]
	n.annotate(held, mesh.AnnotationLiveness, "suspended")
	client := n.app("client")
	client.waitCall("http://web.%s/", n.name)
	f.setLive(held, false)
	const calls = 20
	n.wait(fmt.Sprintf("%d calls of which none gets to %s", calls, held), func() error {
		for range calls {
			if c := client.call("http://web.%s/", n.name); c.Status != http.StatusOK || c.answer(t).Instance == held {
				return fmt.Errorf("%+v", c)
			}
		}
		return nil
	})
	pass(t, 10*time.Second) // the kubelet has probed more often than the threshold
	if got, _ := f.restarts(); got != 0 {
		t.Errorf("%d restarts of a suspended pod", got)
	}
	n.annotate(held, mesh.AnnotationLiveness, "")
	f.waitRestarts(1)
}

func (n *namespace) annotate(pod, annotation, value string) {
	n.t.Helper()
	text := strconv.Quote(value)
	if value == "" {
		text = "null"
	}
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %s}}}`, annotation, text)
	if _, err := cluster.client.CoreV1().Pods(n.name).Patch(n.t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// TestGuardedPace makes the liveness probes of a guarded and an unguarded pod fail, with a free budget: after the
// failure that caused the grant, the kubelet restarts the guarded pod after as many failures as its threshold. On a
// machine that stalls for seconds, a grant or a response is late, so the test makes several attempts.
func TestGuardedPace(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	const threshold = 2
	for attempt := 1; attempt <= attempts; attempt++ {
		guarded := n.checksUntilRestart(fmt.Sprint("guarded-", attempt), "enabled", threshold)
		native := n.checksUntilRestart(fmt.Sprint("native-", attempt), "disabled", threshold)
		t.Logf("checks until the restart: %d guarded, %d not", guarded, native)
		if native >= threshold-1 && guarded <= 1+mesh.GuardedFailureThreshold+1 {
			return
		}
	}
	t.Errorf("%d times the guarded container was checked more often", attempts)
}

// checksUntilRestart returns how often the failing liveness probe of a new pod is made until its container
// restarts.
func (n *namespace) checksUntilRestart(name, guarded string, threshold int32) int64 {
	n.t.Helper()
	p := newPod(name, "node2")
	p.Annotations[mesh.AnnotationGuardedLiveness] = guarded
	p.Spec.Containers[0].ReadinessProbe = nil // it uses the same path
	p.Spec.Containers[0].LivenessProbe = healthz(threshold)
	p.Spec.Containers[0].LivenessProbe.PeriodSeconds = 5
	n.create(p)
	n.waitReady(name)
	a := n.app(name)
	n.wait("the application of "+name, func() error { return a.try(http.MethodGet, "/counts", nil, nil) })
	n.setHealthz(name, http.StatusInternalServerError)
	before, now := a.counts()["/healthz"], int64(0)
	n.waitPod(name, "restarted", func(p *corev1.Pod) error {
		if restarts := status(p, "app").RestartCount; restarts > 0 {
			return nil
		}
		var counts map[string]int64
		if err := a.try(http.MethodGet, "/counts", nil, &counts); err == nil { // an error means that the container has ended
			now = max(now, counts["/healthz"])
		}
		return fmt.Errorf("%d failures so far", now-before)
	})
	return now - before
}
