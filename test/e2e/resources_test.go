//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestResources has pods whose sidecars get different resources: the QoS class Guaranteed is as without the mesh, and
// Envoy has a worker thread for each CPU of its limit.
func TestResources(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	tests := map[string]struct {
		guaranteed  bool
		annotations map[string]string
		threads     int
	}{
		"burstable":        {threads: 1},
		"more":             {annotations: map[string]string{mesh.AnnotationSidecarCPULimit: "1500m"}, threads: 2},
		"guaranteed":       {guaranteed: true, threads: 1},
		"guaranteed-small": {guaranteed: true, annotations: map[string]string{mesh.AnnotationSidecarCPU: "100m", mesh.AnnotationSidecarMemory: "96Mi"}, threads: 1},
	}
	for name, tc := range tests {
		p := newPod(name, "node1")
		maps.Copy(p.Annotations, tc.annotations)
		if tc.guaranteed {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
			}
		}
		n.create(p)
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := &namespace{t: t, name: n.name}
			n.waitReady(name)
			p := n.pod(name)
			if isGuaranteed := p.Status.QOSClass == corev1.PodQOSGuaranteed; isGuaranteed != tc.guaranteed {
				t.Errorf("the pod is %s", p.Status.QOSClass)
			}
			envoy := n.program(p, "envoy")
			if want := fmt.Sprintf("--concurrency %d ", tc.threads); !strings.Contains(strings.Join(envoy.command, " "), want) {
				t.Errorf("Envoy was started as %q, want %s", envoy.command, want)
			}
		})
	}
}

// program returns the process of a pod that runs a program.
func (n *namespace) program(pod *corev1.Pod, name string) process {
	n.t.Helper()
	all := n.processes(pod)
	i := slices.IndexFunc(all, func(p process) bool { return filepath.Base(p.command[0]) == name })
	if i < 0 {
		n.t.Fatalf("pod %s does not run %s: %+v", pod.Name, name, all)
	}
	return all[i]
}
