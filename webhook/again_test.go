package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// late returns a container like another webhook's.
func late(t *testing.T, container string) corev1.Container {
	t.Helper()
	return podWith("", container).Spec.Containers[0]
}

// injectedApp returns an injected pod with a probe and a hook.
func injectedApp(t *testing.T, form webhook.Form) *corev1.Pod {
	t.Helper()
	pod := parse(`spec: {containers: [{name: web, livenessProbe: {tcpSocket: {port: 80}}, lifecycle: {preStop: {httpGet: {port: 81}}}}]}`)
	injected, _ := inject(t, pod, webhook.Options{Sidecar: form})
	return injected
}

func entries(t *testing.T, pod *corev1.Pod) (ids []string) {
	t.Helper()
	table, _, err := mesh.ParseProbeTable(tableOf(t, pod))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range table {
		ids = append(ids, p.Container+" "+string(p.Type)+" "+p.ID)
	}
	return ids
}

func TestContainersThatComeLate(t *testing.T) {
	tests := map[string]struct {
		form   webhook.Form
		change func(*corev1.PodSpec)
		want   []string
	}{
		"at the end": {
			webhook.Native,
			func(s *corev1.PodSpec) {
				s.Containers = append(s.Containers, late(t, "livenessProbe: {httpGet: {port: 90}}"))
			},
			[]string{"web liveness web-liveness", "web preStop 000102030405060708090a0b0c0d0e0f", "app liveness app-liveness"},
		},
		"at the beginning": {
			webhook.Container,
			func(s *corev1.PodSpec) {
				s.Containers = slices.Insert(s.Containers, 0, late(t, "lifecycle: {postStart: {httpGet: {port: 90}}}"))
			},
			[]string{"app postStart 101112131415161718191a1b1c1d1e1f", "web liveness web-liveness", "web preStop 000102030405060708090a0b0c0d0e0f"},
		},
		"an exec probe as of an earlier control plane": {
			webhook.Native,
			func(s *corev1.PodSpec) {
				table := &s.InitContainers[1].Env[3].Value
				*table = strings.Replace(*table, `"tcpSocket":{"port":80}`, `"exec":{"command":["/alive"]}`, 1)
				s.Containers[0].LivenessProbe.HTTPGet.Path = "/exec/web"
			},
			[]string{"web liveness web-liveness", "web preStop 000102030405060708090a0b0c0d0e0f"},
		},
		"a native sidecar before ours": {
			webhook.Native,
			func(s *corev1.PodSpec) {
				s.InitContainers = slices.Insert(s.InitContainers, 0, late(t, "restartPolicy: Always, startupProbe: {httpGet: {port: 90}}"))
			},
			[]string{"app startup app-startup", "web liveness web-liveness", "web preStop 000102030405060708090a0b0c0d0e0f"},
		},
		"another probe of an old one": {
			webhook.Native,
			func(s *corev1.PodSpec) {
				s.Containers[0].LivenessProbe = late(t, "livenessProbe: {grpc: {port: 90}}").LivenessProbe
				s.Containers[0].StartupProbe = late(t, "startupProbe: {tcpSocket: {port: 80}}").StartupProbe
			},
			[]string{"web startup web-startup", "web liveness web-liveness", "web preStop 000102030405060708090a0b0c0d0e0f"},
		},
		"one that is gone": {
			webhook.Native,
			func(s *corev1.PodSpec) { s.Containers[0] = late(t, "livenessProbe: {tcpSocket: {port: 90}}") },
			[]string{"app liveness app-liveness"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := injectedApp(t, tc.form)
			tc.change(&pod.Spec)
			rand := counted(16) // continues after the bytes of the first injection
			again, warnings := inject(t, pod, webhook.Options{}.WithRandom(&rand))
			if diff := cmp.Diff(tc.want, entries(t, again)); diff != "" {
				t.Errorf("probe table (-want +got):\n%s", diff)
			}
			if len(warnings) > 0 {
				t.Errorf("warnings %q", warnings)
			}
			if tc.form == webhook.Native && again.Spec.InitContainers[1].Name != mesh.ContainerSidecar {
				t.Error("kuma-sidecar is not right behind kuma-init")
			}
			if tc.form == webhook.Container && again.Spec.Containers[0].Name != mesh.ContainerSidecar {
				t.Error("kuma-sidecar is not the first container")
			}
			third, _ := inject(t, again, webhook.Options{})
			if diff := cmp.Diff(again, third); diff != "" {
				t.Errorf("the third injection changes the pod:\n%s", diff)
			}
		})
	}
}

// Another mesh's webhook adds a second sidecar after Sonde's: Sonde's sidecar remains, with a warning.
func TestAnotherMeshComesLater(t *testing.T) {
	pod := injectedApp(t, webhook.Native)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: "linkerd-proxy", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)})
	again, warnings := inject(t, pod, webhook.Options{})
	want := []string{"containers[linkerd-proxy]: the pod also has a sidecar of Linkerd, and only one of the two gets its connections: configure only one mesh to inject it"}
	if diff := cmp.Diff(want, warnings); diff != "" || again.Annotations[mesh.AnnotationInjectionWarnings] != want[0] {
		t.Errorf("recorded %q, warnings (-want +got):\n%s", again.Annotations[mesh.AnnotationInjectionWarnings], diff)
	}
	if diff := cmp.Diff(pod.Spec, again.Spec); diff != "" {
		t.Errorf("the second injection changes the pod:\n%s", diff)
	}
}

// TestDefaultsOfTheAPIServer injects a pod again after the API server has set defaults.
func TestDefaultsOfTheAPIServer(t *testing.T) {
	pod := injectedApp(t, webhook.Native)
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.TerminationMessagePath = "/dev/termination-log"
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "kube-api-access", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"})
			if p := c.LivenessProbe; p != nil {
				p.HTTPGet.Scheme, p.PeriodSeconds, p.SuccessThreshold, p.FailureThreshold = "HTTP", 10, 1, 3
			}
			if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.HTTPGet != nil {
				c.Lifecycle.PreStop.HTTPGet.Scheme = "HTTP"
			}
		}
	}
	again, warnings := inject(t, pod, webhook.Options{})
	if diff := cmp.Diff(pod, again); diff != "" || len(warnings) > 0 {
		t.Errorf("the second injection warns %q, and changes:\n%s", warnings, diff)
	}
}

func TestPodsThatChangedSince(t *testing.T) {
	disabled, _ := inject(t, podWith("kuma.io/virtual-probes: disabled", "livenessProbe: {tcpSocket: {port: 80}}"), webhook.Options{})
	tests := map[string]struct {
		pod    *corev1.Pod
		change func(*corev1.Pod)
		want   string
	}{
		"a port that clashes": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, late(t, "ports: [{containerPort: 9000}]"))
		}, "port 9000 of the virtual probes in kuma-sidecar is in use: containers[app].ports uses it"},
		"a probe that clashes": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, late(t, "livenessProbe: {tcpSocket: {port: 9000}}"))
		}, "containers[app].livenessProbe uses it"},
		"another port asked for": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationVirtualProbesPort] = "9001"
		}, `metadata.annotations["kuma.io/virtual-probes-port"]: 9001: kuma-sidecar already has port 9000`},
		"a port for load balancers": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationLBHealthPort] = "9100"
		}, `metadata.annotations["sonde.dev/lb-health-port"]: "9100": kuma-sidecar already has --lb-health-port=0`},
		"another port for Prometheus": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationMetricsPort] = "9100"
		}, `metadata.annotations["sonde.dev/metrics-port"]: "9100": kuma-sidecar already has --metrics-addr=:5670`},
		"port for Prometheus removed": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationMetricsPort] = "0"
		}, `"0": kuma-sidecar already has --metrics-addr=:5670`},
		"a port for Prometheus that clashes": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, late(t, "ports: [{containerPort: 5670}]"))
		}, `containers[app].ports: port 5670 is reserved for the metrics of the pod: set metadata.annotations["sonde.dev/metrics-port"] to another port`},
		"probes disabled": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationVirtualProbes] = "disabled"
		}, `kuma-sidecar, which already has --virtual-probes-port=9000`},
		"probes enabled": {disabled.DeepCopy(), func(p *corev1.Pod) {
			p.Annotations[mesh.AnnotationVirtualProbes] = "enabled"
		}, `kuma-sidecar, which already has --virtual-probes-port=0`},
		"an invalid table": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			p.Spec.InitContainers[1].Env[3].Value = "{}"
		}, "containers[kuma-sidecar].env: KUMA_DATAPLANE_PROBES: parse probe table"},
		"an invalid port": {injectedApp(t, webhook.Native), func(p *corev1.Pod) {
			args := p.Spec.InitContainers[1].Args
			args[slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, mesh.ArgVirtualPort) })] = "--virtual-probes-port=x"
		}, `containers[kuma-sidecar].args: "--virtual-probes-port=x"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.change(tc.pod)
			if _, _, err := webhook.Inject(tc.pod, webhook.Options{}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Inject() = %v, want %q", err, tc.want)
			}
		})
	}
	if again, warnings := inject(t, disabled, webhook.Options{}); !cmp.Equal(disabled, again) || len(warnings) != 1 {
		t.Errorf("a pod whose probes are left alone has changed, warnings %q", warnings)
	}
}

// An empty mesh name means no name.
func TestEmptyMeshTwice(t *testing.T) {
	for _, where := range []string{"labels", "annotations"} {
		pod := parse(`{metadata: {` + where + `: {kuma.io/mesh: ""}}, spec: {containers: [{name: app}]}}`)
		injected, _ := inject(t, pod, webhook.Options{Mesh: "shop"})
		if got := argument(t, sidecarOf(t, injected), "--mesh"); got != "shop" {
			t.Errorf("%s: --mesh=%s, want shop", where, got)
		}
		again, _ := inject(t, injected, webhook.Options{Mesh: "shop"})
		if diff := cmp.Diff(injected, again); diff != "" {
			t.Errorf("%s: the second injection changes the pod:\n%s", where, diff)
		}
	}
}

// TestWarningsStay injects a pod again after adding a probe that cannot be rewritten: the annotation has the warnings
// of both calls, although only the first one checks the drain time.
func TestWarningsStay(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mesh.AnnotationDrainTime: "50m"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app"}}},
	}
	first, warnings := inject(t, pod, webhook.Options{})
	if len(warnings) != 1 || first.Annotations[mesh.AnnotationInjectionWarnings] != warnings[0] {
		t.Fatalf("warnings %q are recorded as %q", warnings, first.Annotations[mesh.AnnotationInjectionWarnings])
	}
	for i := range first.Spec.Containers {
		first.Spec.Containers[i].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Host: "other.example", Port: intstr.FromInt32(80)},
		}}
	}
	second, more := inject(t, first, webhook.Options{})
	if want := warnings[0] + "\n" + strings.Join(more, "\n"); len(more) != 1 || second.Annotations[mesh.AnnotationInjectionWarnings] != want {
		t.Errorf("after warnings %q the annotation has %q, want both", more, second.Annotations[mesh.AnnotationInjectionWarnings])
	}
	third, _ := inject(t, second, webhook.Options{})
	if diff := cmp.Diff(second, third); diff != "" {
		t.Errorf("the third injection changes the pod:\n%s", diff)
	}
}
