package webhook_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestUserOfTheSidecar(t *testing.T) {
	const warning = "containers[app]: user 5678 is reserved for kuma-sidecar: connections of this container are not redirected"
	tests := map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"of the container":    {parse("spec: {containers: [{name: app, securityContext: {runAsUser: 5678}}]}"), []string{warning}},
		"of the pod":          {parse("spec: {securityContext: {runAsUser: 5678}, containers: [{name: app}]}"), []string{warning}},
		"of an init":          {parse("spec: {initContainers: [{name: app, securityContext: {runAsUser: 5678}}], containers: [{name: x}]}"), []string{warning}},
		"the container's own": {parse("spec: {securityContext: {runAsUser: 5678}, containers: [{name: app, securityContext: {runAsUser: 1}}]}"), nil},
		"another":             {parse("spec: {securityContext: {runAsUser: 1000, fsGroup: 5678}, containers: [{name: app}]}"), nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, warnings := inject(t, tc.pod, webhook.Options{})
			if diff := cmp.Diff(tc.want, warnings); diff != "" {
				t.Errorf("warnings (- want, + got):\n%s", diff)
			}
			if _, again := inject(t, injected, webhook.Options{}); !cmp.Equal(again, warnings) {
				t.Errorf("warnings of the second time = %q, want %q", again, warnings)
			}
		})
	}
}

func TestDNSOfThePod(t *testing.T) {
	const name = "sonde-cp.sonde-system.svc"
	tests := map[string]struct {
		policy, controlPlane string
		want                 []string
	}{
		"the node's":      {"Default", "", []string{"spec.dnsPolicy: Default: this pod only starts if its DNS servers can resolve " + name}},
		"of its own":      {"None", "", []string{"spec.dnsPolicy: None: this pod only starts if its DNS servers can resolve " + name}},
		"the cluster's":   {"ClusterFirst", "", nil},
		"no name to find": {"None", "10.0.0.1:5678", nil},
	}
	for test, tc := range tests {
		t.Run(test, func(t *testing.T) {
			pod := parse("spec: {dnsPolicy: " + tc.policy + ", containers: [{name: app}]}")
			if _, warnings := inject(t, pod, webhook.Options{ControlPlane: tc.controlPlane}); !cmp.Equal(tc.want, warnings) {
				t.Errorf("warnings = %q, want %q", warnings, tc.want)
			}
		})
	}
}

// The API server rejects a container limit above the pod's, and container requests above the pod's.
func TestResourcesOfThePod(t *testing.T) {
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}
	tests := map[string]struct {
		resources string
		shared    []corev1.ResourceName
		want      []string
	}{
		"limits": {"limits: {cpu: 500m, memory: 256Mi}", names, []string{
			"spec.resources: kuma-init and kuma-sidecar have no cpu of their own, they share the pod's",
			"spec.resources: kuma-init and kuma-sidecar have no memory of their own, they share the pod's",
		}},
		"requests": {"requests: {memory: 16Mi}", names[1:], []string{
			"spec.resources: kuma-init and kuma-sidecar have no memory of their own, they share the pod's",
		}},
		"of other kinds": {"limits: {hugepages-2Mi: 4Mi}", nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
				pod, warnings := inject(t, parse("spec: {resources: {"+tc.resources+"}, containers: [{name: app}]}"), webhook.Options{Sidecar: form})
				if diff := cmp.Diff(tc.want, warnings); diff != "" {
					t.Errorf("warnings (- want, + got):\n%s", diff)
				}
				for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
					if c.Name != mesh.ContainerInit && c.Name != mesh.ContainerSidecar {
						continue
					}
					for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
						for _, resource := range tc.shared {
							if _, has := list[resource]; has {
								t.Errorf("%s %s has %s: %v", form, c.Name, resource, list)
							}
						}
						if len(list) != len(names)-len(tc.shared) {
							t.Errorf("%s %s has %v", form, c.Name, list)
						}
					}
				}
			}
		})
	}
}
