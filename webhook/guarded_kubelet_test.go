package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// numbers are the kubelet's numbers of app's liveness probe.
type numbers struct{ timeout, failures int32 }

func numbersOf(pod *corev1.Pod) numbers {
	for _, c := range pod.Spec.Containers {
		if c.Name == "app" {
			return numbers{c.LivenessProbe.TimeoutSeconds, c.LivenessProbe.FailureThreshold}
		}
	}
	return numbers{}
}

// isWaitedFor reports whether a liveness probe checks the agent itself, and connections wait while it does not run. It
// fails the test unless both or neither are true.
func isWaitedFor(t *testing.T, pod *corev1.Pod) bool {
	t.Helper()
	probe := sidecarOf(t, pod).LivenessProbe
	waits := slices.Contains(containerOf(t, pod, mesh.ContainerInit).Args, "--guarded-port=9000")
	if (probe != nil) != waits {
		t.Errorf("the sidecar has the liveness probe %v, and its port waits: %t", probe, waits)
	}
	return waits
}

// Neither a slow agent reaches the timeout, nor a restart of the sidecar the threshold, for any values of the user.
// Without the guard, the user's values return.
func TestNumbersOfTheKubelet(t *testing.T) {
	tests := map[string]struct {
		probe            string
		guarded, dropped numbers
	}{
		"defaults":                 {"", numbers{600, 5}, numbers{2, 3}},
		"threshold 1":              {", timeoutSeconds: 1, failureThreshold: 1", numbers{600, 5}, numbers{2, 1}},
		"a large threshold":        {", timeoutSeconds: 4, failureThreshold: 60", numbers{600, 5}, numbers{5, 60}},
		"the kubelet's by chance":  {", timeoutSeconds: 599, failureThreshold: 5", numbers{600, 5}, numbers{600, 5}},
		"a time-out of many hours": {", timeoutSeconds: 10000", numbers{10001, 5}, numbers{10001, 3}},
	}
	for name, tc := range tests {
		for _, form := range forms() {
			t.Run(name+"/"+string(form), func(t *testing.T) {
				pod, _ := inject(t, podWith(guarded, "livenessProbe: {httpGet: {port: 80}"+tc.probe+"}"), webhook.Options{Sidecar: form})
				if got := numbersOf(pod); got != tc.guarded || !isWaitedFor(t, pod) {
					t.Errorf("the kubelet has %v of a guarded probe, want %v, and an agent that is waited for", got, tc.guarded)
				}
				pod.Annotations[mesh.AnnotationGuardedLiveness] = "disabled"
				dropped, _ := inject(t, pod, webhook.Options{})
				if got := numbersOf(dropped); got != tc.dropped || isWaitedFor(t, dropped) {
					t.Errorf("without the guard the kubelet has %v, want %v", got, tc.dropped)
				}
				dropped.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
				again, _ := inject(t, dropped, webhook.Options{})
				if got := numbersOf(again); got != tc.guarded || !isWaitedFor(t, again) {
					t.Errorf("with the guard again the kubelet has %v, want %v", got, tc.guarded)
				}
			})
		}
	}
}

// An agent of an earlier release relies on the user's threshold, and its kuma-init lacks the flag: the pod stays
// guarded in that release's way.
func TestGuardedByAnotherRelease(t *testing.T) {
	pod, _ := inject(t, podWith("", "livenessProbe: {httpGet: {port: 80}, timeoutSeconds: 1, failureThreshold: 2}"), webhook.Options{Image: "sonde:1"})
	pod.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	pod, _ = inject(t, pod, webhook.Options{Image: "sonde:2"})
	if got := numbersOf(pod); got != (numbers{2, 2}) || isWaitedFor(t, pod) || len(guardedProbes(t, pod)) != 1 {
		t.Errorf("the kubelet has %v of it, want the user's threshold and a second more than the user's time-out", got)
	}
	again, _ := inject(t, pod, webhook.Options{Image: "sonde:1"})
	if diff := cmp.Diff(pod.Spec.Containers, again.Spec.Containers); diff != "" {
		t.Errorf("a probe that is guarded already has changed:\n%s", diff)
	}
}

// Pods without a guarded probe, and other probes, are unchanged.
func TestNumbersOfOthers(t *testing.T) {
	const others = "startupProbe: {httpGet: {port: 80}, failureThreshold: 9}, readinessProbe: {tcpSocket: {port: 80}, failureThreshold: 9}"
	for name, pod := range map[string]*corev1.Pod{
		"not guarded":               podWith("", "livenessProbe: {httpGet: {port: 80}, failureThreshold: 2}, "+others),
		"nothing that can be":       podWith(guarded, "livenessProbe: {exec: {command: [a]}}, "+others),
		"other probes of a guarded": podWith(guarded, "livenessProbe: {httpGet: {port: 80}}, "+others),
	} {
		t.Run(name, func(t *testing.T) {
			injected, _ := inject(t, pod, webhook.Options{})
			app := containerOf(t, injected, "app")
			for _, p := range []*corev1.Probe{app.StartupProbe, app.ReadinessProbe} {
				if p.TimeoutSeconds != 2 || p.FailureThreshold != 9 {
					t.Errorf("another probe has time-out %d and threshold %d, want 2 and 9", p.TimeoutSeconds, p.FailureThreshold)
				}
			}
			if want := strings.HasPrefix(name, "other"); isWaitedFor(t, injected) != want {
				t.Errorf("the agent is waited for: %t, want %t", !want, want)
			}
		})
	}
}
