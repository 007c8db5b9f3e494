package webhook_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestLoadBalancers(t *testing.T) {
	const port, grace = `sonde.dev/lb-health-port: "9100"`, `metadata.annotations["sonde.dev/lb-health-port"]: load balancers have `
	tests := map[string]struct {
		annotations, app string
		native           string // --lb-drain-time
		drain            string // --drain-time of the ordinary container
		warnings         []string
	}{
		"nothing asked":      {drain: "25s"},
		"drain time alone":   {`sonde.dev/lb-drain-time: 1s`, "", "", "25s", []string{`metadata.annotations["sonde.dev/lb-drain-time"]: it has no effect without sonde.dev/lb-health-port`}},
		"port":               {port, "", "20s", "5s", nil},
		"a short drain time": {port + ", sonde.dev/lb-drain-time: 5s", "", "5s", "20s", nil},
		"none":               {port + ", sonde.dev/lb-drain-time: 0s", "", "0s", "25s", nil},
		"all of the grace":   {port + ", sonde.dev/lb-drain-time: 25s", "", "25s", "1s", nil},
		"too long":           {port + ", sonde.dev/lb-drain-time: 1h", "", "1h0m0s", "1s", []string{grace + "1h0m0s to notice that the pod goes, and terminationGracePeriodSeconds leaves 25s"}},
		"liveness":           {port, "livenessProbe: {httpGet: {port: 9100, path: /livez}}", "20s", "5s", nil},
		"readiness":          {port, "readinessProbe: {httpGet: {port: 9100, path: /healthz}}", "20s", "5s", nil},
		"liveness that fails in a drain": {port, "livenessProbe: {httpGet: {port: 9100, path: /healthz}}", "20s", "5s", []string{
			"containers[app].livenessProbe: it fails when the proxy drains, and the kubelet then restarts the container: /livez does not",
		}},
		"without probes": {port + ", kuma.io/virtual-probes: disabled", "livenessProbe: {httpGet: {port: 9100}}", "20s", "5s", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			native, warnings := inject(t, podWith(tc.annotations, tc.app), webhook.Options{Sidecar: webhook.Native})
			if diff := cmp.Diff(tc.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			ordinary, _ := inject(t, podWith(tc.annotations, tc.app), webhook.Options{Sidecar: webhook.Container})
			if got := argument(t, sidecarOf(t, ordinary), "--drain-time"); got != tc.drain {
				t.Errorf("--drain-time=%s, want %s", got, tc.drain)
			}
			if tc.native == "" {
				return
			}
			if got := argument(t, sidecarOf(t, native), "--lb-drain-time"); got != tc.native {
				t.Errorf("--lb-drain-time=%s, want %s", got, tc.native)
			}
			if got := argument(t, sidecarOf(t, native), "--lb-health-port"); got != "9100" {
				t.Errorf("--lb-health-port=%s", got)
			}
		})
	}
}
