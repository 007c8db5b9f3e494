package webhook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// podWith returns a pod with annotations and one container, both in YAML flow style without braces.
func podWith(annotations, container string) *corev1.Pod {
	return parse("metadata: {annotations: {" + annotations + "}}\nspec: {containers: [{name: app, " + container + "}]}")
}

func parse(text string) *corev1.Pod {
	body, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	pod, err := webhook.DecodePod(body)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", text, err))
	}
	return pod
}

func inject(t *testing.T, pod *corev1.Pod, o webhook.Options) (*corev1.Pod, []string) {
	t.Helper()
	if !o.HasRandom() {
		o = o.WithRandom(newRand())
	}
	before := pod.DeepCopy()
	injected, warnings, err := webhook.Inject(pod, o)
	if err != nil {
		t.Fatalf("Inject() = %v", err)
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("Inject changed the pod that it was given:\n%s", diff)
	}
	return injected, warnings
}

func argument(t *testing.T, c corev1.Container, flag string) string {
	t.Helper()
	for i, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, flag+"="); ok {
			return value
		}
		if arg == flag && i+1 < len(c.Args) {
			return c.Args[i+1]
		}
	}
	t.Fatalf("%s has no argument %s: %q", c.Name, flag, c.Args)
	return ""
}

func initOf(t *testing.T, pod *corev1.Pod) corev1.Container {
	t.Helper()
	for _, c := range pod.Spec.InitContainers {
		if c.Name == mesh.ContainerInit {
			return c
		}
	}
	t.Fatal("the pod has no kuma-init")
	return corev1.Container{}
}

func TestWithoutRandomnessThereIsNoHook(t *testing.T) {
	broken := errors.New("no entropy")
	pod := podWith("", "lifecycle: {preStop: {httpGet: {port: 80}}}")
	if _, _, err := webhook.Inject(pod, webhook.Options{}.WithRandom(iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("Inject() = %v, want %v", err, broken)
	}
	if _, _, err := webhook.Inject(pod, webhook.Options{}.WithRandom(io.LimitReader(newRand(), 15))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Inject() with 120 bits = %v, want an error", err)
	}
}

func TestHookIDsAreRandom(t *testing.T) {
	pod := podWith("", "lifecycle: {preStop: {httpGet: {port: 80}}, postStart: {httpGet: {port: 80}}}")
	seen := map[string]bool{}
	for range 2 {
		injected, _, err := webhook.Inject(pod, webhook.Options{})
		if err != nil {
			t.Fatal(err)
		}
		table, _, err := mesh.ParseProbeTable(tableOf(t, injected))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range table {
			if len(p.ID) != 32 || seen[p.ID] {
				t.Errorf("id %q: want 128 new random bits, hexadecimal", p.ID)
			}
			seen[p.ID] = true
		}
	}
}

func TestPodsThatGetNoSidecar(t *testing.T) {
	tests := map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"annotation":        {podWith("kuma.io/sidecar-injection: disabled", "livenessProbe: {tcpSocket: {port: 80}}"), "kuma.io/sidecar-injection is disabled: not injected"},
		"false":             {podWith(`kuma.io/sidecar-injection: "false"`, ""), "kuma.io/sidecar-injection is disabled: not injected"},
		"label":             {parse(`{metadata: {labels: {kuma.io/sidecar-injection: disabled}}, spec: {containers: [{name: app}]}}`), "kuma.io/sidecar-injection is disabled: not injected"},
		"own":               {podWith("sonde.dev/sidecar-injection: disabled, kuma.io/sidecar-injection: enabled", ""), "sonde.dev/sidecar-injection is disabled: not injected"},
		"the node's":        {parse("spec: {hostNetwork: true, containers: [{name: app}]}"), "spec.hostNetwork: redirection would apply to the whole node: not injected"},
		"of another system": {parse("spec: {os: {name: windows}, containers: [{name: app}]}"), "spec.os: there is no sidecar for Windows: not injected"},
		"of other nodes":    {parse("spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: app}]}"), "spec.nodeSelector: there is no sidecar for Windows: not injected"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, warnings := inject(t, tc.pod, webhook.Options{})
			if diff := cmp.Diff(tc.pod, injected); diff != "" {
				t.Errorf("the pod has changed:\n%s", diff)
			}
			if diff := cmp.Diff([]string{tc.want}, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsThatAskForASidecar(t *testing.T) {
	for _, annotations := range []string{
		"", `kuma.io/sidecar-injection: enabled`, `kuma.io/sidecar-injection: "true"`,
		`sonde.dev/sidecar-injection: enabled, kuma.io/sidecar-injection: disabled`, // only Sonde's own annotation counts
		`kuma.io/transparent-proxying-reachable-services: web_shop_svc_80`,          // only the control plane reads it
	} {
		injected, warnings := inject(t, podWith(annotations, ""), webhook.Options{})
		sidecarOf(t, injected)
		if len(warnings) > 0 {
			t.Errorf("%s: warnings %q", annotations, warnings)
		}
	}
}

func TestVirtualPort(t *testing.T) {
	tests := map[string]struct {
		pod  *corev1.Pod
		o    webhook.Options
		want string
	}{
		"default":                        {podWith("", ""), webhook.Options{}, "9000"},
		"of the options":                 {podWith("", ""), webhook.Options{VirtualProbesPort: 9500}, "9500"},
		"asked":                          {podWith(`kuma.io/virtual-probes-port: "19000"`, ""), webhook.Options{VirtualProbesPort: 9500}, "19000"},
		"declared":                       {podWith("", "ports: [{containerPort: 9000}, {containerPort: 9001}]"), webhook.Options{}, "9002"},
		"declared by another":            {parse("spec: {containers: [{name: app}], initContainers: [{name: setup, ports: [{containerPort: 9000}]}]}"), webhook.Options{}, "9001"},
		"declared for UDP is no clash":   {podWith("", "ports: [{containerPort: 9000, protocol: UDP}]"), webhook.Options{}, "9000"},
		"probed by name":                 {podWith("", "ports: [{name: x, containerPort: 9000, protocol: UDP}], livenessProbe: {tcpSocket: {port: x}}"), webhook.Options{}, "9001"},
		"grpc":                           {podWith("", "livenessProbe: {grpc: {port: 9000}}"), webhook.Options{}, "9001"},
		"a probe elsewhere is no clash":  {podWith("", "livenessProbe: {httpGet: {host: other, port: 9000}}"), webhook.Options{}, "9000"},
		"options clash with redirection": {podWith("", ""), webhook.Options{VirtualProbesPort: 15001}, "9001"},
		"an excluded port is no clash":   {podWith(`traffic.kuma.io/exclude-inbound-ports: "9000"`, ""), webhook.Options{}, "9000"},
		"disabled":                       {podWith(`kuma.io/virtual-probes: disabled`, "livenessProbe: {tcpSocket: {port: 9000}}"), webhook.Options{}, "0"},
		"disabled, and asked for a port": {podWith(`kuma.io/virtual-probes: "false", kuma.io/virtual-probes-port: "80"`, "ports: [{containerPort: 80}]"), webhook.Options{}, "0"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, _ := inject(t, tc.pod, tc.o)
			if got := argument(t, sidecarOf(t, injected), "--virtual-probes-port"); got != tc.want {
				t.Errorf("--virtual-probes-port=%s, want %s", got, tc.want)
			}
			annotated := injected.Annotations[mesh.AnnotationVirtualProbesPort]
			if want := tc.pod.Annotations[mesh.AnnotationVirtualProbesPort]; want == "" && tc.want != "0" && annotated != tc.want {
				t.Errorf("annotation %q, want %s", annotated, tc.want)
			}
		})
	}
}

func TestExcludedPorts(t *testing.T) {
	tests := map[string]struct{ annotations, inbound, outbound string }{
		"none":     {"", "9000", ""},
		"seed":     {`traffic.kuma.io/exclude-inbound-ports: "9800"`, "9000,9800", ""},
		"several":  {`traffic.kuma.io/exclude-inbound-ports: " 9800 , 22,22"`, "9000,9800,22", ""},
		"ours too": {`traffic.kuma.io/exclude-inbound-ports: "9000,9800"`, "9000,9800", ""},
		"empty":    {`traffic.kuma.io/exclude-inbound-ports: "", traffic.kuma.io/exclude-outbound-ports: ""`, "9000", ""},
		"outbound": {`traffic.kuma.io/exclude-outbound-ports: "3306,443"`, "9000", "3306,443"},
		"disabled": {`kuma.io/virtual-probes: disabled, traffic.kuma.io/exclude-inbound-ports: "9800"`, "9800", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, _ := inject(t, podWith(tc.annotations, ""), webhook.Options{})
			c := initOf(t, injected)
			if in, out := argument(t, c, "--exclude-inbound-ports"), argument(t, c, "--exclude-outbound-ports"); in != tc.inbound || out != tc.outbound {
				t.Errorf("excluded %q and %q, want %q and %q", in, out, tc.inbound, tc.outbound)
			}
		})
	}
}

func TestDrainTime(t *testing.T) {
	tests := map[string]struct {
		asked   string
		grace   *int64
		want    string
		warning bool
	}{
		"default":           {"", nil, "25s", false},
		"default, more":     {"", new(int64(300)), "25s", false},
		"default, less":     {"", new(int64(10)), "5s", false},
		"default, too less": {"", new(int64(3)), "1s", false},
		"default, none":     {"", new(int64(0)), "1s", false},
		"asked":             {"10s", nil, "10s", false},
		"asked, long":       {"5m", new(int64(400)), "5m0s", false},
		"asked, fits":       {"25s", nil, "25s", false},
		"asked too much":    {"26s", nil, "25s", true},
		"asked, no grace":   {"2s", new(int64(0)), "1s", true},
		"hour":              {"1h", new(int64(1 << 62)), "1h0m0s", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podWith("", "")
			if tc.asked != "" {
				pod.Annotations[mesh.AnnotationDrainTime] = tc.asked
			}
			pod.Spec.TerminationGracePeriodSeconds = tc.grace
			injected, warnings := inject(t, pod, webhook.Options{})
			if got := argument(t, sidecarOf(t, injected), "--drain-time"); got != tc.want {
				t.Errorf("--drain-time=%s, want %s", got, tc.want)
			}
			if (len(warnings) > 0) != tc.warning {
				t.Errorf("warnings %q, want some: %t", warnings, tc.warning)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	for before, want := range map[int32]struct{ table, kubelet int32 }{
		0: {1, 2}, 1: {1, 2}, 2: {2, 3}, 2147483646: {2147483646, 2147483647}, 2147483647: {2147483647, 2147483647},
	} {
		pod := podWith("", "livenessProbe: {tcpSocket: {port: 80}}")
		pod.Spec.Containers[0].LivenessProbe.TimeoutSeconds = before
		injected, _ := inject(t, pod, webhook.Options{})
		table, _, err := mesh.ParseProbeTable(tableOf(t, injected))
		if err != nil {
			t.Fatal(err)
		}
		if got := table[0].TimeoutSeconds; got != want.table {
			t.Errorf("%d: the agent has %d s, want %d", before, got, want.table)
		}
		if got := injected.Spec.Containers[0].LivenessProbe.TimeoutSeconds; got != want.kubelet {
			t.Errorf("%d: the kubelet has %d s, want %d", before, got, want.kubelet)
		}
	}
}

func TestPlacesOfContainers(t *testing.T) {
	pod := parse(`spec: {containers: [{name: a}, {name: b}], initContainers: [{name: x}, {name: z, restartPolicy: Always}]}`)
	names := func(containers []corev1.Container) (all []string) {
		for _, c := range containers {
			all = append(all, c.Name)
		}
		return all
	}
	injected, _ := inject(t, pod, webhook.Options{})
	if got := names(injected.Spec.InitContainers); !slices.Equal(got, []string{"kuma-init", "kuma-sidecar", "x", "z"}) {
		t.Errorf("native: init containers %q", got)
	}
	if got := names(injected.Spec.Containers); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("native: containers %q", got)
	}
	injected, _ = inject(t, pod, webhook.Options{Sidecar: webhook.Container})
	if got := names(injected.Spec.InitContainers); !slices.Equal(got, []string{"x", "z", "kuma-init"}) {
		t.Errorf("container: init containers %q", got)
	}
	if got := names(injected.Spec.Containers); !slices.Equal(got, []string{"kuma-sidecar", "a", "b"}) {
		t.Errorf("container: containers %q", got)
	}
}

// TestControlPlaneCAChanges injects pods before and in a rotation of the control plane's CA.
func TestControlPlaneCAChanges(t *testing.T) {
	o, ca := enabled().options(), []byte(caText(t))
	o.ControlPlaneCA = func() []byte { return ca }
	s := newServer(t, o)
	for range 2 {
		answer := review(t, s, webhook.PathInject, podReview("shop", toJSON(t, "{metadata: {name: web}, spec: {containers: [{name: app}]}}")))
		text, err := json.Marshal(string(ca))
		if err != nil {
			t.Fatal(err)
		}
		if !answer.Allowed || !bytes.Contains(answer.Patch, text) {
			t.Errorf("the patch %s has not the CAs %s", answer.Patch, text)
		}
		ca = append(ca, caText(t)...)
	}
}

func TestMeshAndControlPlane(t *testing.T) {
	ca := caText(t)
	injected, _ := inject(t, podWith("", ""), webhook.Options{Mesh: "shop", Image: "my/image:2", ControlPlane: "cp.example:1", ControlPlaneCA: ca})
	c := sidecarOf(t, injected)
	if got := argument(t, c, "--mesh"); got != "shop" || injected.Labels[mesh.LabelMesh] != "shop" {
		t.Errorf("--mesh=%s, label %q, want shop", got, injected.Labels[mesh.LabelMesh])
	}
	if got := argument(t, c, "--cp-address"); got != "cp.example:1" {
		t.Errorf("--cp-address=%s", got)
	}
	if c.Image != "my/image:2" || initOf(t, injected).Image != "my/image:2" {
		t.Errorf("images %s, %s", c.Image, initOf(t, injected).Image)
	}
	if injected.Annotations[mesh.AnnotationControlPlaneCA] != ca {
		t.Error("the CA is not in the pod")
	}
	field := injected.Spec.Volumes[0].Projected.Sources[1].DownwardAPI.Items[0].FieldRef.FieldPath
	if want := "metadata.annotations['" + mesh.AnnotationControlPlaneCA + "']"; field != want {
		t.Errorf("the CA's file comes from %s, want %s", field, want)
	}
	for _, pod := range []*corev1.Pod{
		podWith("kuma.io/mesh: own", ""), parse("{metadata: {labels: {kuma.io/mesh: own}}, spec: {containers: [{name: app}]}}"),
	} {
		injected, _ := inject(t, pod, webhook.Options{Mesh: "shop"})
		if got, label := argument(t, sidecarOf(t, injected), "--mesh"), injected.Labels[mesh.LabelMesh]; got != "own" || label != "own" {
			t.Errorf("--mesh=%s, label %q, want own", got, label)
		}
	}
}

func TestNamedPortIsOfTheSameContainer(t *testing.T) {
	pod := parse(`spec: {containers: [
	  {name: a, ports: [{name: http, containerPort: 1}], livenessProbe: {httpGet: {port: http}}},
	  {name: b, ports: [{name: http, containerPort: 2}, {name: http, containerPort: 3}], livenessProbe: {tcpSocket: {port: http}}}]}`)
	injected, _ := inject(t, pod, webhook.Options{})
	for i, want := range []string{"/1/", "/tcp/2"} {
		if got := injected.Spec.Containers[i].LivenessProbe.HTTPGet; got.Path != want || got.Port != intstr.FromInt32(9000) {
			t.Errorf("container %d asks %s on %s, want %s on 9000", i, got.Path, got.Port.String(), want)
		}
	}
}

// The first kubectl apply of an object only adds fields, so an omitted scheme would remain.
func TestSchemeIsOverwritten(t *testing.T) {
	for scheme, want := range map[corev1.URIScheme]corev1.URIScheme{"": "", "HTTP": "HTTP", "HTTPS": "HTTP"} {
		pod := podWith("", "livenessProbe: {httpGet: {port: 80}}, lifecycle: {preStop: {httpGet: {port: 80}}}")
		pod.Spec.Containers[0].LivenessProbe.HTTPGet.Scheme = scheme
		pod.Spec.Containers[0].Lifecycle.PreStop.HTTPGet.Scheme = scheme
		injected, _ := inject(t, pod, webhook.Options{})
		app := injected.Spec.Containers[0]
		if got, hook := app.LivenessProbe.HTTPGet.Scheme, app.Lifecycle.PreStop.HTTPGet.Scheme; got != want || hook != want {
			t.Errorf("%q: the kubelet asks by %q, and the hook by %q, want %q", scheme, got, hook, want)
		}
	}
}

func TestExplain(t *testing.T) {
	pod := podWith("", "livenessProbe: {httpGet: {port: 80, path: /a, scheme: HTTPS}}, readinessProbe: {exec: {command: [x, z]}}, lifecycle: {preStop: {httpGet: {host: h, port: 1}}}")
	decisions, port, err := webhook.Explain(pod, webhook.Options{})
	if err != nil || port != 9000 {
		t.Fatalf("Explain() = %d, %v", port, err)
	}
	want := []webhook.Decision{
		{Container: "app", Type: "liveness", Written: "httpGet HTTPS :80 /a", Probe: &mesh.Probe{
			ID: "app-liveness", Container: "app", Type: "liveness", TimeoutSeconds: 1,
			HTTPGet: &mesh.HTTPGetProbe{Path: "/a", Port: 80, Scheme: "HTTPS"},
		}, Kubelet: webhook.Kubelet{TimeoutSeconds: 2}},
		{Container: "app", Type: "readiness", Written: "exec x z", Why: "exec runs in the container"},
		{Container: "app", Type: "preStop", Written: "httpGet h:1", Why: `it calls host "h", not the pod: not rewritten`, Warn: true},
	}
	if diff := cmp.Diff(want, decisions); diff != "" {
		t.Errorf("Explain() (-want +got):\n%s", diff)
	}
	injected, _ := inject(t, pod, webhook.Options{})
	again, _, err := webhook.Explain(injected, webhook.Options{})
	if diff := cmp.Diff(want, again); err != nil || diff != "" {
		t.Errorf("Explain() of the injected pod = %v (-want +got):\n%s", err, diff)
	}
}
