package restarts

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestWhyUnguarded(t *testing.T) {
	for want, change := range map[string]func(*corev1.Pod){
		"it has ended":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"it has no sidecar": func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[1:] },
		"it has no annotation sonde.dev/guarded-liveness: the annotation of its namespace affects only pods created after it": func(p *corev1.Pod) {
			unguard(p)
			p.Annotations = nil
		},
		`its annotation sonde.dev/guarded-liveness is "disabled"`: func(p *corev1.Pod) {
			unguard(p)
			p.Annotations[mesh.AnnotationGuardedLiveness] = "disabled"
		},
		"none of its containers has a liveness probe that can be guarded: sondectl probes explain says why": unguard,
		"this replica of the control plane has not read the pod yet":                                        func(*corev1.Pod) {},
	} {
		p := guardedPod()
		p.Labels[mesh.LabelMesh] = "default"
		change(p)
		if got := whyUnguarded(p); got != want {
			t.Errorf("whyUnguarded() = %q, want %q", got, want)
		}
	}
	if got := whyUnguarded(guardedPod()); got != "it has no sidecar" {
		t.Errorf("for a pod outside the mesh: %q", got)
	}
}
