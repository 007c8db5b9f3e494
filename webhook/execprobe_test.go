package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

const guardedExec = guarded + ", sonde.dev/guarded-exec: enabled"

// The pod wins over its namespace, and both over OpenKruise's annotations, which also guard exec probes.
func TestWhoAsksForGuardedExec(t *testing.T) {
	const (
		disabled = guarded + ", sonde.dev/guarded-exec: disabled"
		kruise   = `apps.kruise.io/using-enhanced-liveness: "true"`
		context  = `apps.kruise.io/container-probe-context: '[{"name":"app","livenessProbe":{"exec":{"command":["/alive"]}}}]'`
	)
	tests := map[string]struct {
		pod, namespace string
		want           bool
	}{
		"guarded liveness alone":        {pod: guarded},
		"by the pod":                    {pod: guardedExec, want: true},
		"by the namespace":              {pod: guarded, namespace: "enabled", want: true},
		"by the pod, against it":        {pod: guardedExec, namespace: "disabled", want: true},
		"by the namespace, not the pod": {pod: disabled, namespace: "enabled"},
		"by OpenKruise":                 {pod: kruise, want: true},
		"by OpenKruise's probes":        {pod: guarded + ", " + context, want: true},
		"by OpenKruise, not the pod":    {pod: disabled + ", " + kruise},
		"by OpenKruise, against it":     {pod: kruise, namespace: "disabled"},
		"OpenKruise's probes unguarded": {pod: context},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podWith("kuma.io/sidecar-injection: enabled, "+tc.pod, "livenessProbe: {exec: {command: [/alive]}}")
			ns := &webhook.Namespace{Name: "shop"}
			if tc.namespace != "" {
				ns.Annotations = map[string]string{mesh.AnnotationGuardedExec: tc.namespace}
			}
			injected, err := webhook.InjectIn(pod, ns, webhook.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := len(guardedProbes(t, injected)) > 0; got != tc.want {
				t.Errorf("guarded: %t, want %t", got, tc.want)
			}
			if tc.want && injected.Annotations[mesh.AnnotationGuardedExec] != "enabled" {
				t.Errorf("annotations %v", injected.Annotations)
			}
			again, err := webhook.InjectIn(injected, ns, webhook.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(injected, again); diff != "" {
				t.Errorf("the second injection changes the pod (-first +second):\n%s", diff)
			}
		})
	}
}

func TestGuardedExecThatIsInvalid(t *testing.T) {
	_, err := webhook.InjectIn(podWith("kuma.io/sidecar-injection: enabled, "+guarded, ""), &webhook.Namespace{
		Name: "shop", Annotations: map[string]string{mesh.AnnotationGuardedExec: "yes"},
	}, webhook.Options{})
	const want = `namespace shop: metadata.annotations["sonde.dev/guarded-exec"]: "yes": must be `
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("InjectIn() error = %v, want %s", err, want)
	}
}

func TestGuardedExecWithoutGuardedLiveness(t *testing.T) {
	want := []string{`metadata.annotations["sonde.dev/guarded-exec"]: it has no effect without sonde.dev/guarded-liveness: enabled`}
	if _, warnings := inject(t, podWith("sonde.dev/guarded-exec: enabled", "livenessProbe: {exec: {command: [a]}}"), webhook.Options{}); !slices.Equal(warnings, want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
}

func TestExecProbesThatCannotBeGuarded(t *testing.T) {
	const runs = "exec runs in the container, and "
	tests := map[string]struct {
		annotations, container string
		form                   webhook.Form
		want                   string
	}{
		"it can":            {"", "livenessProbe: {exec: {command: [a]}}", webhook.Native, ""},
		"per port":          {", " + perPort, "livenessProbe: {exec: {command: [a]}}", webhook.Native, ""},
		"ordinary sidecar":  {"", "livenessProbe: {exec: {command: [a]}}", webhook.Container, runs + "kuma-sidecar is an ordinary container here, before which this one may start: left as it is"},
		"disabled":          {", kuma.io/virtual-probes: disabled", "livenessProbe: {exec: {command: [a]}}", webhook.Native, runs + "kuma.io/virtual-probes is disabled: left as it is"},
		"no program":        {"", "livenessProbe: {exec: {}}", webhook.Native, "exec.command: must begin with the name of a program: not rewritten, the API server decides about it"},
		"NUL":               {"", `livenessProbe: {exec: {command: [a, "\0"]}}`, webhook.Native, "exec.command: must not contain NUL: not rewritten, the API server decides about it"},
		"two handlers":      {"", "livenessProbe: {exec: {command: [a]}, tcpSocket: {port: 80}}", webhook.Native, "more than one handler: not rewritten, the API server decides about it"},
		"a start of others": {"", "livenessProbe: {exec: {command: [a]}}, startupProbe: {tcpSocket: {port: 80}}, lifecycle: {postStart: {sleep: {seconds: 1}}}", webhook.Native, runs + "neither its startupProbe nor its postStart hook is exec, which could start a helper: left as it is"},
		"a variable":        {"", "livenessProbe: {exec: {command: [a, $(B)]}}, startupProbe: {tcpSocket: {port: 80}}", webhook.Native, runs + "only an exec startupProbe could start a helper for a command with $( or $$, which the kubelet replaces: left as it is"},
		"two dollars":       {"", "livenessProbe: {exec: {command: [a, $$]}}, startupProbe: {tcpSocket: {port: 80}}", webhook.Native, runs + "only an exec startupProbe could start a helper for a command with $( or $$, which the kubelet replaces: left as it is"},
		"one dollar":        {"", "livenessProbe: {exec: {command: [a, $HOME]}}, startupProbe: {tcpSocket: {port: 80}}", webhook.Native, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, warnings := inject(t, podWith(guardedExec+tc.annotations, tc.container), webhook.Options{Sidecar: tc.form})
			var want, wantGuarded []string
			if tc.want == "" {
				wantGuarded = []string{"app"}
			} else {
				want = []string{"containers[app].livenessProbe: not guarded: " + tc.want}
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

// An existing sidecar is not set up for an exec probe that another webhook adds later.
func TestExecProbeThatComesLate(t *testing.T) {
	injected, _ := inject(t, podWith(guardedExec, "livenessProbe: {exec: {command: [a]}}"), webhook.Options{})
	probe := late(t, "livenessProbe: {exec: {command: [b]}}")
	probe.Name = "late"
	injected.Spec.Containers = append(injected.Spec.Containers, probe)
	again, warnings := inject(t, injected, webhook.Options{})
	want := []string{"containers[late].livenessProbe: not guarded: exec runs in the container, and the pod's existing sidecar is not set up for it: left as it is"}
	if !slices.Equal(warnings, want) || !slices.Equal(guardedProbes(t, again), []string{"app"}) {
		t.Errorf("warnings %q, guarded %q, want %q, and app", warnings, guardedProbes(t, again), want)
	}
}
