//go:build e2e

package e2e

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestGuardedLiveness has the liveness probes of all pods of a Deployment fail at once. In guarded pods one container restarts after the other: the default
// allows a quarter of the pods. Without the guard they restart together, which shows that this test sees it.
func TestGuardedLiveness(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]string{"guarded": "enabled", "native": "disabled"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t, injected)
			const pods = 4
			d := newDeployment("web", pods, nil)
			template := &d.Spec.Template
			template.Annotations = map[string]string{mesh.AnnotationGuardedLiveness: guarded}
			app := &template.Spec.Containers[0]
			app.LivenessProbe = &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}},
				PeriodSeconds: 1, FailureThreshold: 3,
			}
			app.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portHTTP)}}, PeriodSeconds: 1, InitialDelaySeconds: 3}
			n.create(d)
			n.waitRolledOut("web")
			for _, pod := range n.podsOf("web") {
				n.app(pod).do("PUT", "/http", url.Values{"status": {"500"}}, nil)
			}
			down := n.mostDown("web", app.Name, pods)
			t.Logf("at most %d of %d pods were down at once", down, pods)
			if (down > 1) != (guarded == "disabled") {
				t.Errorf("at most %d pods were down at once", down)
			}
		})
	}
}

// mostDown waits until the container of each pod has restarted and is ready, and returns how many pods were not Ready at once at most.
func (n *namespace) mostDown(label, container string, pods int) (most int) {
	n.t.Helper()
	n.wait(3*time.Minute, "the restart of all pods", func() error {
		list, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "app=" + label})
		if err != nil {
			return err
		}
		down, restarted := 0, 0
		for i := range list.Items {
			p := &list.Items[i]
			if isReady(p) != nil {
				down++
			}
			if status(p, container).RestartCount > 0 {
				restarted++
			}
		}
		most = max(most, down)
		if restarted < pods || down > 0 {
			return fmt.Errorf("%d of %d have restarted, %d are not Ready", restarted, pods, down)
		}
		return nil
	})
	return most
}

// TestGuardedBadPath has a liveness probe that never passes, as after a rollout with a wrong port: two containers restart, and then none.
func TestGuardedBadPath(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	d := newDeployment("web", 4, nil)
	d.Spec.Template.Annotations = map[string]string{mesh.AnnotationGuardedLiveness: "enabled"}
	app := &d.Spec.Template.Spec.Containers[0]
	const nobody = 7999
	app.LivenessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(nobody)}}, PeriodSeconds: 1, FailureThreshold: 2,
	}
	n.create(d)
	n.waitRolledOut("web")
	restarts := func() (all int) {
		for _, name := range n.podsOf("web") {
			all += int(status(n.pod(name), app.Name).RestartCount)
		}
		return all
	}
	n.wait(2*time.Minute, "two restarts", func() error {
		if got := restarts(); got < 2 {
			return fmt.Errorf("there were %d", got)
		}
		return nil
	})
	pass(t, 30*time.Second)
	if got := restarts(); got != 2 {
		t.Errorf("there were %d restarts, want two", got)
	}
}
