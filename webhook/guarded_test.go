package webhook_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

const guarded = "sonde.dev/guarded-liveness: enabled"

// guardedProbes returns the containers whose liveness probes are guarded.
func guardedProbes(t *testing.T, pod *corev1.Pod) (containers []string) {
	t.Helper()
	table, _, err := mesh.ParseProbeTable(tableOf(t, pod))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range table {
		if p.Guarded {
			containers = append(containers, p.Container)
		}
	}
	return containers
}

// The pod takes precedence over its namespace, and Sonde's annotation over OpenKruise's.
func TestWhoAsksForGuardedLiveness(t *testing.T) {
	const (
		disabled, kruise, notKruise = "sonde.dev/guarded-liveness: disabled", `apps.kruise.io/using-enhanced-liveness: "true"`, `apps.kruise.io/using-enhanced-liveness: "false"`
	)
	tests := map[string]struct {
		pod, namespace string
		want           bool
	}{
		"nothing asked":                   {},
		"by the pod":                      {pod: guarded, want: true},
		"by the pod, true":                {pod: `sonde.dev/guarded-liveness: "true"`, want: true},
		"by the namespace":                {namespace: "enabled", want: true},
		"by the pod, against it":          {pod: guarded, namespace: "disabled", want: true},
		"by the namespace, not the pod":   {pod: disabled, namespace: "enabled"},
		"by OpenKruise":                   {pod: kruise, want: true},
		"by OpenKruise, against it":       {pod: kruise, namespace: "false", want: true},
		"not by OpenKruise":               {pod: notKruise, namespace: "true"},
		"Sonde's against OpenKruise's":    {pod: disabled + ", " + kruise},
		"Sonde's against OpenKruise's no": {pod: guarded + ", " + notKruise, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podWith("kuma.io/sidecar-injection: enabled, "+tc.pod, "livenessProbe: {tcpSocket: {port: 80}, failureThreshold: 7}")
			ns := &webhook.Namespace{Name: "shop"}
			if tc.namespace != "" {
				ns.Annotations = map[string]string{mesh.AnnotationGuardedLiveness: tc.namespace}
			}
			injected, err := webhook.InjectIn(pod, ns, webhook.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(guardedProbes(t, injected)) > 0; got != tc.want {
				t.Errorf("guarded: %t, want %t", got, tc.want)
			}
			_, context := injected.Annotations[mesh.AnnotationProbeContext]
			if on, err := mesh.ParseSwitch(injected.Annotations[mesh.AnnotationGuardedLiveness]); context != tc.want || (on && err == nil) != tc.want {
				t.Errorf("the pod is recorded with %q", injected.Annotations)
			}
			if !tc.want && strings.Contains(tableOf(t, injected), "failureThreshold") {
				t.Errorf("the table of a pod that is not guarded has changed: %s", tableOf(t, injected))
			}
			// Without its namespace, a pod keeps its state.
			again, _ := inject(t, injected, webhook.Options{})
			if diff := cmp.Diff(injected, again); diff != "" {
				t.Errorf("the second injection changes the pod:\n%s", diff)
			}
		})
	}
}

func TestBadGuardedLiveness(t *testing.T) {
	tests := map[string]struct{ annotations, namespace, want string }{
		"guarded-liveness":         {"sonde.dev/guarded-liveness: maybe", "", `metadata.annotations["sonde.dev/guarded-liveness"]: "maybe": must be enabled or disabled`},
		"guarded-liveness empty":   {`sonde.dev/guarded-liveness: ""`, "", `metadata.annotations["sonde.dev/guarded-liveness"]: must be enabled or disabled`},
		"of the namespace":         {"", "yes", `namespace shop: metadata.annotations["sonde.dev/guarded-liveness"]: "yes": must be enabled or disabled`},
		"using-enhanced-liveness":  {"apps.kruise.io/using-enhanced-liveness: enabled", "", `metadata.annotations["apps.kruise.io/using-enhanced-liveness"]: "enabled": must be true or false`},
		"OpenKruise's beside ours": {guarded + ", apps.kruise.io/using-enhanced-liveness: True!", "", `"True!": must be true or false`},
		"liveness":                 {"sonde.dev/liveness: off!", "", `metadata.annotations["sonde.dev/liveness"]: "off!": must be suspended or native`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ns := &webhook.Namespace{Name: "shop"}
			if tc.namespace != "" {
				ns.Annotations = map[string]string{mesh.AnnotationGuardedLiveness: tc.namespace}
			}
			_, err := webhook.InjectIn(podWith("kuma.io/sidecar-injection: enabled, "+tc.annotations, ""), ns, webhook.Options{})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
	for _, value := range []string{"suspended", "native"} {
		if _, warnings := inject(t, podWith("sonde.dev/liveness: "+value, ""), webhook.Options{}); len(warnings) > 0 {
			t.Errorf("%s: warnings %q", value, warnings)
		}
	}
}

func TestProbesThatCannotBeGuarded(t *testing.T) {
	const perPortGuarded, liveness = guarded + ", " + perPort, "containers[app].livenessProbe: not guarded: "
	tests := map[string]struct {
		annotations, probe, want string
	}{
		"HTTP":             {guarded, "httpGet: {port: 80}", ""},
		"HTTPS":            {guarded, "httpGet: {port: 80, scheme: HTTPS}", ""},
		"TCP":              {guarded, "tcpSocket: {port: 80}", ""},
		"gRPC":             {guarded, "grpc: {port: 80}", ""},
		"HTTP, per port":   {perPortGuarded, "httpGet: {port: 80}", ""},
		"exec":             {guarded, "exec: {command: [a]}", "exec runs in the container: with sonde.dev/guarded-exec: enabled it would be guarded"},
		"exec, per port":   {perPortGuarded, "exec: {command: [a]}", "exec runs in the container: with sonde.dev/guarded-exec: enabled it would be guarded"},
		"TCP, per port":    {perPortGuarded, "tcpSocket: {port: 80}", "in per-port mode the kernel answers tcpSocket probes: with sonde.dev/virtual-probes-mode: unified it would be guarded"},
		"gRPC, per port":   {perPortGuarded, "grpc: {port: 80}", "in per-port mode the kubelet sends grpc probes, for which it discards no answer: with sonde.dev/virtual-probes-mode: unified it would be guarded"},
		"another host":     {guarded, "httpGet: {host: h, port: 80}", `it calls host "h", not the pod: not rewritten`},
		"an excluded port": {guarded + `, traffic.kuma.io/exclude-inbound-ports: "80"`, "httpGet: {port: 80}", "port 80 is excluded from redirection by traffic.kuma.io/exclude-inbound-ports: not rewritten"},
		"no port":          {guarded, "httpGet: {port: web}", `this container has no port named "web": not rewritten`},
		"disabled": {
			guarded + `, kuma.io/virtual-probes: disabled`, "httpGet: {port: 80}",
			"kuma.io/virtual-probes is disabled: not rewritten, and a STRICT inbound rejects the kubelet",
		},
		"disabled, another host": {guarded + `, kuma.io/virtual-probes: disabled`, "httpGet: {host: h, port: 80}", `it calls host "h", not the pod: not rewritten`},
		"load balancers' port":   {guarded + `, sonde.dev/lb-health-port: "9100"`, "httpGet: {path: /livez, port: 9100}", "the agent answers this port: not rewritten"},
		"a bad threshold":        {guarded, "httpGet: {port: 80}, failureThreshold: -1", `failureThreshold: -1: must be at least 1: not rewritten, the API server decides about it`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, warnings := inject(t, podWith(tc.annotations, "livenessProbe: {"+tc.probe+"}"), webhook.Options{})
			var want, wantGuarded []string
			if tc.want != "" {
				want = []string{liveness + tc.want}
			} else {
				wantGuarded = []string{"app"}
			}
			if diff := cmp.Diff(want, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(wantGuarded, guardedProbes(t, injected)); diff != "" {
				t.Errorf("guarded (-want +got):\n%s", diff)
			}
		})
	}
}

// Other probes of a guarded pod restart nothing, or must restart, so they cause no warning.
func TestOtherProbesAreNotGuarded(t *testing.T) {
	injected, warnings := inject(t, podWith(guarded, "startupProbe: {exec: {command: [a]}}, readinessProbe: {tcpSocket: {port: 80}, failureThreshold: 9}"), webhook.Options{})
	if table := tableOf(t, injected); len(warnings) > 0 || strings.Contains(table, "guarded") || strings.Contains(table, "failureThreshold") {
		t.Errorf("table %s, warnings %q", table, warnings)
	}
	if text, ok := injected.Annotations[mesh.AnnotationProbeContext]; ok {
		t.Errorf("the annotation is %s without a liveness probe", text)
	}
}

// The kubelet reads these fields of the probe itself.
func TestWhatStaysOnAGuardedProbe(t *testing.T) {
	probe := "initialDelaySeconds: 1, periodSeconds: 2, timeoutSeconds: 3, successThreshold: 1, failureThreshold: 7, terminationGracePeriodSeconds: 6"
	for _, mode := range []string{"", ", " + perPort} {
		injected, _ := inject(t, podWith(guarded+mode, "livenessProbe: {httpGet: {port: 80}, "+probe+"}"), webhook.Options{})
		got := injected.Spec.Containers[0].LivenessProbe
		want := podWith("", "livenessProbe: {"+probe+"}").Spec.Containers[0].LivenessProbe
		want.ProbeHandler, want.TimeoutSeconds, want.FailureThreshold = got.ProbeHandler, 600, 5
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the rewritten probe (-want +got):\n%s", mode, diff)
		}
		table, _, err := mesh.ParseProbeTable(tableOf(t, injected))
		if err != nil || table[0].FailureThreshold != 7 || table[0].TimeoutSeconds != 3 || table[0].PeriodSeconds != 2 {
			t.Errorf("%s: the table is %+v, %v", mode, table, err)
		}
	}
}

func TestExplainGuarded(t *testing.T) {
	pod := podWith(guarded+`, sonde.dev/guarded-exec: disabled, apps.kruise.io/container-probe-context: '[{"name":"app","livenessProbe":{"grpc":{"port":90}}}]'`, "readinessProbe: {exec: {command: [x]}}")
	pod.Spec.Containers = append(pod.Spec.Containers, parse("spec: {containers: [{name: job, livenessProbe: {exec: {command: [x]}}}]}").Spec.Containers...)
	before := pod.DeepCopy()
	want := []webhook.Decision{
		{Container: "app", Type: "liveness", Written: "grpc :90", Probe: &mesh.Probe{
			ID: "app-liveness", Container: "app", Type: "liveness", TimeoutSeconds: 1, Guarded: true, FailureThreshold: 3, PeriodSeconds: 10,
			GRPC: &mesh.GRPCProbe{Port: 90},
		}, Kubelet: webhook.Kubelet{TimeoutSeconds: 600, FailureThreshold: 5}},
		{Container: "app", Type: "readiness", Written: "exec x", Why: "exec runs in the container"},
		{Container: "job", Type: "liveness", Written: "exec x", Why: "exec runs in the container", Unguarded: "exec runs in the container: with sonde.dev/guarded-exec: enabled it would be guarded"},
	}
	injected, _ := inject(t, pod, webhook.Options{})
	for name, pod := range map[string]*corev1.Pod{"written": pod, "injected": injected} {
		decisions, _, err := webhook.Explain(pod, webhook.Options{})
		if diff := cmp.Diff(want, decisions); err != nil || diff != "" {
			t.Errorf("Explain() of the pod as it is %s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if diff := cmp.Diff(before, pod); diff != "" {
		t.Errorf("Explain changed the pod:\n%s", diff)
	}
}
