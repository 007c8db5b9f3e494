package webhook_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

const perPortMode = mesh.AnnotationVirtualProbesMode + ": per-port"

// New fields of Kubernetes are in the probe table, and the kubelet's request to the agent is unchanged.
func TestNewFieldsAreCarried(t *testing.T) {
	tests := map[string]struct{ annotations, probe, table, kubelet string }{
		"HTTP2":           {"", "httpGet: {port: 80, protocol: HTTP2}", `"httpGet":{"path":"/","port":80,"scheme":"HTTP","protocol":"HTTP2"}`, `{"httpGet":{"path":"/80/","port":9000,"httpHeaders"`},
		"HTTP1":           {"", "httpGet: {port: 80, protocol: HTTP1}", `"protocol":"HTTP1"`, `{"httpGet":{"path":"/80/","port":9000,"httpHeaders"`},
		"TLS":             {"", "grpc: {port: 80, mode: TLS}", `"grpc":{"port":80,"mode":"TLS"}`, `{"httpGet":{"path":"/grpc/80","port":9000,"httpHeaders"`},
		"TLS, per port":   {perPortMode, "grpc: {port: 80, service: a, mode: TLS}", `"grpc":{"port":80,"service":"a","mode":"TLS"}`, `{"grpc":{"port":9000,"service":"a"},"timeoutSeconds"`},
		"HTTP2, per port": {perPortMode, "httpGet: {port: 80, protocol: HTTP2}", `"protocol":"HTTP2"`, `{"httpGet":{"path":"/80/","port":9000,"httpHeaders"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, warnings := inject(t, podWith(tc.annotations, "readinessProbe: {timeoutSeconds: 1, "+tc.probe+"}"), webhook.Options{})
			table, kubelet := tableOf(t, injected), encode(t, injected.Spec.Containers[0].ReadinessProbe)
			if !strings.Contains(table, tc.table) || !strings.HasPrefix(kubelet, tc.kubelet) || strings.Contains(kubelet, "protocol") || len(warnings) > 0 {
				t.Errorf("table %s, want %s\nkubelet %s, want %s\nwarnings %q", table, tc.table, kubelet, tc.kubelet, warnings)
			}
			again, warnings := inject(t, injected, webhook.Options{})
			if encode(t, again) != encode(t, injected) || len(warnings) > 0 {
				t.Errorf("a second injection changes the pod, or warns: %q", warnings)
			}
		})
	}
}

// The kubelet ignores the protocol of a hook, and so does the agent: neither the table nor Explain contains it.
func TestProtocolOfAHook(t *testing.T) {
	pod := podWith("", "lifecycle: {preStop: {httpGet: {port: 80, protocol: HTTP2}}}")
	injected, warnings := inject(t, pod, webhook.Options{})
	if table := tableOf(t, injected); strings.Contains(table, "protocol") || injected.Spec.Containers[0].Lifecycle.PreStop.HTTPGet.Protocol != nil || len(warnings) > 0 {
		t.Errorf("table %s, hook %s, warnings %q", table, encode(t, injected.Spec.Containers[0].Lifecycle), warnings)
	}
	decisions, _, err := webhook.Explain(pod, webhook.Options{})
	if err != nil || decisions[0].Probe.Request(80) != "GET http://:80/" {
		t.Errorf("Explain() = %+v, %v, want a request of HTTP/1.1", decisions, err)
	}
}

// A rewritten probe calls the agent by HTTP/1.1 and without TLS, even if other webhooks have added fields.
func TestNewFieldsOfRewrittenProbes(t *testing.T) {
	for name, tc := range map[string]struct{ annotations, probe string }{
		"httpGet": {"", "httpGet: {port: 80}"}, "grpc": {perPortMode, "grpc: {port: 80, mode: TLS}"},
	} {
		t.Run(name, func(t *testing.T) {
			injected, _ := inject(t, podWith(tc.annotations, "livenessProbe: {"+tc.probe+"}"), webhook.Options{})
			changed := injected.DeepCopy()
			if p := changed.Spec.Containers[0].LivenessProbe; p.HTTPGet != nil {
				p.HTTPGet.Protocol = new(corev1.HTTPProtocolHTTP2)
			} else {
				p.GRPC.Mode = new(corev1.GRPCProbeModeTLS)
			}
			again, _ := inject(t, changed, webhook.Options{})
			if encode(t, again) != encode(t, injected) {
				t.Errorf("pod = %s, want %s", encode(t, again), encode(t, injected))
			}
		})
	}
}

// Unknown fields and invalid values are not rewritten, with a warning that names them.
func TestProbesThatAreLeft(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for probe, want := range map[string]string{
		"livenessProbe: {httpGet: {port: 80, protocol: HTTP3}}":                `livenessProbe: httpGet.protocol: "HTTP3": must be HTTP1 or HTTP2: not rewritten, the API server decides about it`,
		"livenessProbe: {httpGet: {port: 80, scheme: HTTPS, protocol: HTTP2}}": `livenessProbe: httpGet.protocol: "HTTP2": must be HTTP1 with scheme HTTPS: not rewritten, the API server decides about it`,
		"livenessProbe: {grpc: {port: 80, mode: mTLS}}":                        `livenessProbe: grpc.mode: "mTLS": must be Plaintext or TLS: not rewritten, the API server decides about it`,
		"livenessProbe: {httpGet: {port: 80, tls: {insecure: true}}}":          "livenessProbe: httpGet.tls is unknown to this release: not rewritten",
		"livenessProbe: {tcpSocket: {port: 80, mode: x}, jitter: 1}":           "is unknown to this release: not rewritten",
		"startupProbe: {udpSocket: {port: 80}}":                                "startupProbe: udpSocket is unknown to this release: not rewritten",
		"lifecycle: {preStop: {httpGet: {port: 80, retries: 1}}}":              "lifecycle.preStop: httpGet.retries is unknown to this release: not rewritten",
		"readinessProbe: {httpGet: {port: 80, " + long + ": 1}}":               "is unknown to this release: not rewritten",
	} {
		t.Run(want, func(t *testing.T) {
			document, err := yaml.YAMLToJSON([]byte("metadata: {}\nspec: {containers: [{name: app, " + probe + "}]}"))
			if err != nil {
				t.Fatal(err)
			}
			injected, warnings, err := webhook.InjectJSON(document, webhook.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if writtenContainers(t, injected) != writtenContainers(t, document) {
				t.Errorf("injected: %s, want the containers of %s", injected, document)
			}
			if len(warnings) != 1 || !strings.HasSuffix(warnings[0], want) || len(warnings[0]) > 250 {
				t.Errorf("warnings = %q, want one: %s", warnings, want)
			}
			decisions, _, err := webhook.ExplainJSON(document, webhook.Options{})
			if err != nil || len(decisions) != 1 || decisions[0].Probe != nil || !strings.HasSuffix(want, decisions[0].Why) && !strings.HasSuffix(decisions[0].Why, want) {
				t.Errorf("ExplainJSON() = %+v, %v, want that it is left: %s", decisions, err, want)
			}
		})
	}
}

// An agent of another release may not support the field, and would use HTTP/1.1, or no TLS.
func TestNewFieldWithAnEarlierSidecar(t *testing.T) {
	pod, _ := inject(t, podWith("", "image: a"), webhook.Options{Image: "sonde:before"})
	pod.Spec.Containers[0].ReadinessProbe = parse("spec: {containers: [{readinessProbe: {httpGet: {port: 80, protocol: HTTP2}}}]}").Spec.Containers[0].ReadinessProbe
	injected, warnings := inject(t, pod, webhook.Options{Image: "sonde:now"})
	const want = "httpGet.protocol: the pod's sidecar has another release, which may not support it: not rewritten"
	if got := encode(t, injected.Spec.Containers[0].ReadinessProbe); got != encode(t, pod.Spec.Containers[0].ReadinessProbe) ||
		!slices.ContainsFunc(warnings, func(w string) bool { return strings.HasSuffix(w, want) }) {
		t.Errorf("probe = %s, warnings %q, want %s", got, warnings, want)
	}
}

// If a module update adds a field, check whether readActions and the probe table must support it.
func TestFieldsOfProbesAreKnown(t *testing.T) {
	for object, want := range map[any][]string{
		corev1.Probe{}: {
			"ProbeHandler", "InitialDelaySeconds", "TimeoutSeconds", "PeriodSeconds", "SuccessThreshold", "FailureThreshold", "TerminationGracePeriodSeconds",
		},
		corev1.ProbeHandler{}:     {"Exec", "HTTPGet", "TCPSocket", "GRPC"},
		corev1.Lifecycle{}:        {"PostStart", "PreStop", "StopSignal"},
		corev1.LifecycleHandler{}: {"Exec", "HTTPGet", "TCPSocket", "Sleep"},
		corev1.HTTPHeader{}:       {"Name", "Value"},
		corev1.TCPSocketAction{}:  {"Port", "Host"},
		corev1.GRPCAction{}:       {"Port", "Service", "Mode"},
		corev1.SleepAction{}:      {"Seconds"},
	} {
		checkFields(t, reflect.TypeOf(object), want)
	}
	checkFields(t, reflect.TypeFor[corev1.HTTPGetAction](), []string{"Path", "Port", "Host", "Scheme", "HTTPHeaders", "Protocol"})
	checkFields(t, reflect.TypeFor[corev1.ExecAction](), []string{"Command"})
}

func checkFields(t *testing.T, of reflect.Type, want []string) {
	t.Helper()
	var got []string
	for field := range of.Fields() {
		got = append(got, field.Name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the fields %q, known are %q", of, got, want)
	}
}

func encode(t *testing.T, object any) string {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writtenContainers returns the containers of a document.
func writtenContainers(t *testing.T, document []byte) string {
	t.Helper()
	var pod struct {
		Spec struct{ Containers json.RawMessage }
	}
	if err := json.Unmarshal(document, &pod); err != nil {
		t.Fatal(err)
	}
	return string(pod.Spec.Containers)
}
