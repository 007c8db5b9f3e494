package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// The chart's policy allows the control plane to change one condition of pods, and nothing else in their status. It
// does not restrict other users.
func TestConditionPolicy(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "condition", nil)
	manifests, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	installAccounts(t, client, manifests)
	installPolicy(t, manifests)
	cp := asAccount(t, client)
	pods := client.CoreV1().Pods("condition")
	pod, err := pods.Create(t.Context(), podOf("condition", "web", func(p *corev1.Pod) {
		p.Labels, p.Finalizers = map[string]string{"a": "b"}, []string{"example.com/kept"}
	}), metav1.CreateOptions{})
	if err == nil {
		pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, "10.1.0.8", []corev1.PodIP{{IP: "10.1.0.8"}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", RestartCount: 1}}
		_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	const (
		path      = "/api/v1/namespaces/condition/pods/web/status"
		strategic = "application/strategic-merge-patch+json"
		refused   = "ValidatingAdmissionPolicy 'sonde-liveness-held'"
	)
	patches := map[string]string{
		"ready":               `{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}`,
		"another":             `{"status": {"conditions": [{"type": "example.com/other", "status": "True"}]}}`,
		"no other":            `{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`,
		"with its own":        `{"status": {"conditions": [{"type": "` + mesh.ConditionLivenessHeld + `", "status": "True"}], "phase": "Failed"}}`,
		"the phase":           `{"status": {"phase": "Failed"}}`,
		"the address":         `{"status": {"podIP": "10.1.0.9", "podIPs": [{"$patch": "replace"}, {"ip": "10.1.0.9"}]}}`,
		"the restart count":   `{"status": {"containerStatuses": [{"name": "app", "restartCount": 7}]}}`,
		"the generation":      `{"status": {"observedGeneration": 7}}`,
		"a label":             `{"metadata": {"labels": {"x": "y"}}}`,
		"an annotation":       `{"metadata": {"annotations": {"x": "y"}}}`,
		"a finalizer":         `{"metadata": {"finalizers": ["example.com/a"]}}`,
		"a reason and a text": `{"status": {"reason": "Evicted", "message": "x"}}`,
	}
	must.Poll(t, "the policy to be in force", func(ctx context.Context) error {
		_, err := cp.Do(ctx, http.MethodPatch, path+"?dryRun=All", strategic, patches["the phase"])
		if err == nil {
			_, err = cp.Do(ctx, http.MethodPatch, path+"?dryRun=All", strategic, patches["ready"])
		}
		if err == nil || !strings.Contains(err.Error(), refused) {
			return errors.Join(errors.New("not refused"), err)
		}
		return nil
	})
	for name, patch := range patches {
		t.Run(name, func(t *testing.T) {
			_, err := cp.Do(t.Context(), http.MethodPatch, path+"?dryRun=All", strategic, patch)
			if err == nil || !strings.Contains(err.Error(), refused) {
				t.Errorf("error %v, want a refusal by %s", err, refused)
			}
			if _, err := cluster.Do(t.Context(), http.MethodPatch, path+"?dryRun=All", strategic, patch); err != nil {
				t.Errorf("another's is refused: %v", err)
			}
		})
	}
	for i, status := range []string{"True", "False", "True"} {
		if i == 2 { // of a terminating pod
			if err := pods.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		patch := `{"status": {"conditions": [{"type": "` + mesh.ConditionLivenessHeld + `", "status": "` + status + `", "reason": "InProgress"}]}}`
		if _, err := cp.Do(t.Context(), http.MethodPatch, path, strategic, patch); err != nil {
			t.Errorf("its own condition is refused: %v", err)
		}
	}
}
