package admission_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestPodSecurity checks pods after injection with the code of Pod Security. Without kuma-init, the level restricted
// accepts them.
func TestPodSecurity(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refusal := func(pod *corev1.Pod) string {
		level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec))
		return result.ForbiddenDetail()
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "testdata", "inject", "*", "pod.yaml"))
	if err != nil || len(files) < 10 {
		t.Fatalf("the pods are %q: %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var pod corev1.Pod
			if err := yaml.Unmarshal(text, &pod); err != nil {
				t.Fatal(err)
			}
			restrict(&pod.Spec)
			if why := refusal(&pod); why != "" {
				t.Fatalf("the pod itself is refused: %s", why)
			}
			for cni, want := range map[webhook.CNI]string{webhook.CNIAll: "", webhook.CNIOff: mesh.ContainerInit} {
				injected, _, err := webhook.Inject(&pod, webhook.Options{CNI: cni})
				if err != nil {
					t.Fatal(err)
				}
				if podspec.Container(&injected.Spec, mesh.ContainerSidecar) == nil {
					t.Fatal("no sidecar")
				}
				if why := refusal(injected); (why == "") != (want == "") || !strings.Contains(why, want) {
					t.Errorf("CNI %s: refused for %q, want %q", cni, why, want)
				}
			}
		})
	}
}

// restrict makes the pod's own containers satisfy the level.
func restrict(spec *corev1.PodSpec) {
	spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	for i := range spec.Volumes {
		spec.Volumes[i].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	}
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.SecurityContext = &corev1.SecurityContext{
				AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}
			for j := range c.Ports {
				c.Ports[j].HostPort = 0
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
				if p != nil {
					leaveOutHost(p.HTTPGet, p.TCPSocket)
				}
			}
			for _, h := range hooksOf(c.Lifecycle) {
				leaveOutHost(h.HTTPGet, h.TCPSocket)
			}
		}
	}
}

func hooksOf(l *corev1.Lifecycle) (hooks []*corev1.LifecycleHandler) {
	if l != nil && l.PostStart != nil {
		hooks = append(hooks, l.PostStart)
	}
	if l != nil && l.PreStop != nil {
		hooks = append(hooks, l.PreStop)
	}
	return hooks
}

func leaveOutHost(get *corev1.HTTPGetAction, socket *corev1.TCPSocketAction) {
	if get != nil {
		get.Host = ""
	}
	if socket != nil {
		socket.Host = ""
	}
}
