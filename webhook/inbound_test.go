package webhook_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestGateway(t *testing.T) {
	tests := map[string]struct {
		value string
		want  bool
		err   string
	}{
		"enabled":  {value: "enabled", want: true},
		"true":     {value: `"true"`, want: true},
		"disabled": {value: "disabled"},
		"false":    {value: `"false"`},
		"builtin":  {value: "builtin", err: `metadata.annotations["kuma.io/gateway"]: "builtin": must be enabled or disabled`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			injected, _, err := webhook.Inject(podWith("kuma.io/gateway: "+tc.value, ""), webhook.Options{})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("Inject() = %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil || podspec.IsGateway(&injected.Spec) != tc.want {
				t.Errorf("%v, gateway %t, want %t", err, !tc.want, tc.want)
			}
		})
	}
}

// The kubelet reaches a gateway's application itself, so probes that are not rewritten work.
func TestProbesOfAGatewayThatStay(t *testing.T) {
	const probe = "livenessProbe: {tcpSocket: {port: 80}}"
	pod := podWith("kuma.io/gateway: enabled, kuma.io/virtual-probes: disabled", probe)
	if injected, warnings := inject(t, pod, webhook.Options{}); injected.Spec.Containers[0].LivenessProbe.TCPSocket == nil || len(warnings) > 0 {
		t.Errorf("%+v, warnings %q", injected.Spec.Containers[0].LivenessProbe, warnings)
	}
	pod = parse(`{metadata: {annotations: {kuma.io/gateway: enabled}}, spec: {containers: [{name: app}], initContainers: [{name: early, restartPolicy: Always, ` + probe + `}]}}`)
	if injected, warnings := inject(t, pod, webhook.Options{Sidecar: webhook.Container}); injected.Spec.InitContainers[0].LivenessProbe.TCPSocket == nil || len(warnings) > 0 {
		t.Errorf("%+v, warnings %q", injected.Spec.InitContainers[0].LivenessProbe, warnings)
	}
}

// A second injection does not change the redirection.
func TestGatewayThatComesLate(t *testing.T) {
	for before, after := range map[string]string{"disabled": "enabled", "enabled": "disabled"} {
		pod, _ := inject(t, podWith("kuma.io/gateway: "+before, ""), webhook.Options{})
		pod.Annotations["kuma.io/gateway"] = after
		again, warnings := inject(t, pod, webhook.Options{})
		want := `metadata.annotations["kuma.io/gateway"]: "` + after + `": has no effect, since kuma-init already has --redirect-inbound=`
		if podspec.IsGateway(&again.Spec) != (before == "enabled") || len(warnings) != 1 || !strings.HasPrefix(warnings[0], want) {
			t.Errorf("%s after %s: warnings %q", after, before, warnings)
		}
	}
}
