package webhook_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// Without kuma-init, a pod differs from others only in the variable for the plugin's daemon.
func TestPodsWithoutInit(t *testing.T) {
	for name, document := range readPods(t) {
		t.Run(name, func(t *testing.T) {
			pod := decode(t, document)
			want, _ := inject(t, pod, webhook.Options{})
			got, _ := inject(t, pod, webhook.Options{CNI: webhook.CNIAll})
			if _, is := podspec.RedirectionText(&got.Spec); !is || podspec.IsGateway(&got.Spec) != podspec.IsGateway(&want.Spec) {
				t.Fatalf("redirected by the plugin: %t; gateway %t, with kuma-init %t", is, podspec.IsGateway(&got.Spec), podspec.IsGateway(&want.Spec))
			}
			again, _ := inject(t, got, webhook.Options{}) // even with other options
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("the second injection changes the pod:\n%s", diff)
			}
			want.Spec.InitContainers = slices.DeleteFunc(want.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == mesh.ContainerInit })
			sidecar := podspec.Container(&got.Spec, mesh.ContainerSidecar)
			sidecar.Env = slices.DeleteFunc(sidecar.Env, func(v corev1.EnvVar) bool { return v.Name == mesh.EnvRedirection })
			delete(got.Annotations, mesh.AnnotationInjectionWarnings) // they contain names of Sonde's containers
			delete(want.Annotations, mesh.AnnotationInjectionWarnings)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-with kuma-init +without:\n%s", diff)
			}
		})
	}
}

func redirectionOf(t *testing.T, pod *corev1.Pod) mesh.Redirection {
	t.Helper()
	text, _ := podspec.RedirectionText(&pod.Spec)
	r, err := mesh.ParseRedirection(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Another webhook adds a guarded probe, and in per-port mode a TCP probe, between two injections.
func TestRedirectionOfLateProbes(t *testing.T) {
	o := webhook.Options{CNI: webhook.CNIAll}
	pod, _ := inject(t, podWith("sonde.dev/guarded-liveness: enabled", ""), o)
	if got := redirectionOf(t, pod); got.GuardedPort != 0 {
		t.Errorf("guarded port %d without a probe", got.GuardedPort)
	}
	pod.Spec.Containers[0].LivenessProbe = late(t, "livenessProbe: {httpGet: {port: 80}}").LivenessProbe
	pod, _ = inject(t, pod, o)
	if got := redirectionOf(t, pod); got.GuardedPort != 9000 {
		t.Errorf("guarded port %d, want 9000", got.GuardedPort)
	}
	pod, _ = inject(t, podWith("sonde.dev/virtual-probes-mode: per-port", ""), o)
	pod.Spec.Containers[0].LivenessProbe = late(t, "livenessProbe: {tcpSocket: {port: 80}}").LivenessProbe
	pod, _ = inject(t, pod, o)
	if got, want := redirectionOf(t, pod).TCPProbes, []mesh.RedirectedProbe{{Port: 9000, Target: 80}}; !slices.Equal(got, want) {
		t.Errorf("TCP probes %v, want %v", got, want)
	}
}

// Only annotations of a pod can change its redirection.
func TestRedirectionThatIsWrittenByHand(t *testing.T) {
	o := webhook.Options{CNI: webhook.CNIAll}
	pod, _ := inject(t, podWith("", ""), o)
	want := redirectionOf(t, pod)
	env := pod.Spec.InitContainers[0].Env
	env[len(env)-1].Value = `{"excludeInboundPorts":[8080],"families":"ipv4"}`
	pod, _ = inject(t, pod, o)
	if diff := cmp.Diff(want, redirectionOf(t, pod)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

func TestCNIOfNamespaces(t *testing.T) {
	const enabled, disabled = "enabled", "disabled"
	tests := map[string]struct {
		cni               webhook.CNI
		form              webhook.Form
		label, annotation string
		want              bool
		warning, err      string
	}{
		"off":                          {cni: webhook.CNIOff},
		"all":                          {cni: webhook.CNIAll, want: true},
		"all, not this":                {cni: webhook.CNIAll, label: disabled},
		"all, not this, by annotation": {cni: webhook.CNIAll, annotation: disabled},
		"namespaces":                   {cni: webhook.CNINamespaces},
		"namespaces, this":             {cni: webhook.CNINamespaces, label: enabled, want: true},
		"an ordinary container":        {cni: webhook.CNIAll, form: webhook.Container},
		"no plugin":                    {cni: webhook.CNIOff, label: enabled, warning: "namespace shop: sonde.dev/cni is enabled, but this installation has no CNI plugin"},
		"a bad value":                  {cni: webhook.CNIAll, label: "yes", err: `namespace shop: metadata.labels["sonde.dev/cni"]: "yes": must be enabled or disabled`},
		"two values":                   {cni: webhook.CNIAll, label: enabled, annotation: disabled, err: `the label with the same name is "enabled"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := &webhook.Namespace{Name: "shop", Labels: map[string]string{mesh.LabelOwnInjection: enabled}, Annotations: map[string]string{}}
			if tc.label != "" {
				ns.Labels[mesh.LabelCNI] = tc.label
			}
			if tc.annotation != "" {
				ns.Annotations[mesh.LabelCNI] = tc.annotation
			}
			injected, err := webhook.InjectIn(podWith("", ""), ns, webhook.Options{CNI: tc.cni, Sidecar: tc.form})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("InjectIn() = %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, got := podspec.RedirectionText(&injected.Spec); got != tc.want || got == (podspec.Container(&injected.Spec, mesh.ContainerInit) != nil) {
				t.Errorf("redirected by the plugin: %t, want %t, and else kuma-init", got, tc.want)
			}
			if got := injected.Annotations[mesh.AnnotationInjectionWarnings]; !strings.Contains(got, tc.warning) || (got == "") != (tc.warning == "") {
				t.Errorf("warnings %q, want %q", got, tc.warning)
			}
		})
	}
}

// Pod Security accepts the pod, so there is no warning about it.
func TestPodSecurityWithoutInit(t *testing.T) {
	ns := &webhook.Namespace{Name: "shop", Labels: map[string]string{mesh.LabelOwnInjection: "enabled", "pod-security.kubernetes.io/enforce": "restricted"}}
	for cni, warns := range map[webhook.CNI]bool{webhook.CNIOff: true, webhook.CNIAll: false} {
		injected, err := webhook.InjectIn(podWith("", ""), ns, webhook.Options{CNI: cni})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(injected.Annotations[mesh.AnnotationInjectionWarnings], "NET_ADMIN"); got != warns {
			t.Errorf("%s: warns of the capability: %t, want %t", cni, got, warns)
		}
	}
}

func TestTooManyPortsWithoutInit(t *testing.T) {
	var ports []string
	for port := range 2001 {
		ports = append(ports, strconv.Itoa(port+20000))
	}
	_, _, err := webhook.Inject(podWith("traffic.kuma.io/exclude-outbound-ports: '"+strings.Join(ports, ",")+"'", ""), webhook.Options{CNI: webhook.CNIAll})
	if err == nil || !strings.Contains(err.Error(), "must be at most 2000 in a pod without kuma-init") {
		t.Errorf("Inject() = %v", err)
	}
}
