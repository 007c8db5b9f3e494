package webhook_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestLoadBalancers(t *testing.T) {
	const port, grace = `sonde.dev/lb-health-port: "9100"`, `metadata.annotations["sonde.dev/lb-health-port"]: load balancers need `
	tests := map[string]struct {
		annotations, app string
		native           string // --lb-drain-time
		drain            string // --drain-time of the ordinary container
		warnings         []string
	}{
		"nothing asked":      {drain: "25s"},
		"drain time alone":   {`sonde.dev/lb-drain-time: 1s`, "", "", "25s", []string{`metadata.annotations["sonde.dev/lb-drain-time"]: has no effect without sonde.dev/lb-health-port`}},
		"port":               {port, "", "20s", "5s", nil},
		"a short drain time": {port + ", sonde.dev/lb-drain-time: 5s", "", "5s", "20s", nil},
		"none":               {port + ", sonde.dev/lb-drain-time: 0s", "", "0s", "25s", nil},
		"all of the grace":   {port + ", sonde.dev/lb-drain-time: 25s", "", "25s", "1s", nil},
		"too long":           {port + ", sonde.dev/lb-drain-time: 1h", "", "1h0m0s", "1s", []string{grace + "1h0m0s to notice that the pod ends, but terminationGracePeriodSeconds only leaves 25s"}},
		"liveness":           {port, "livenessProbe: {httpGet: {port: 9100, path: /livez}}", "20s", "5s", nil},
		"readiness":          {port, "readinessProbe: {httpGet: {port: 9100, path: /healthz}}", "20s", "5s", nil},
		"liveness that fails in a drain": {port, "livenessProbe: {httpGet: {port: 9100, path: /healthz}}", "20s", "5s", []string{
			"containers[app].livenessProbe: it fails when the proxy drains, and the kubelet then restarts the container: use /livez",
		}},
		"without probes": {port + ", kuma.io/virtual-probes: disabled", "livenessProbe: {httpGet: {port: 9100, path: /livez}}", "20s", "5s", nil},
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

// TestProbesOfTheLoadBalancersPort has probes of the agent's port whose results their authors may not expect.
func TestProbesOfTheLoadBalancersPort(t *testing.T) {
	const (
		restarts = ", so it always fails and the kubelet restarts the container again and again: "
		unready  = ", so it always fails and the pod never becomes ready: "
		instead  = "write httpGet: {path: /livez, port: 9100}, or use a port of the application"
		noGRPC   = "the agent answers gRPC at this port with Unimplemented"
		noTLS    = "this port has no TLS"
		noPath   = "at this port the agent only answers /healthz and /livez, and returns 404 for other paths"
		tcp      = "the agent always accepts connections to this port, so the probe never fails: "
		drains   = "it fails when the proxy drains, and the kubelet then restarts the container: use /livez"
	)
	tests := map[string]struct{ kind, probe, want string }{
		"livez":                           {"livenessProbe", "httpGet: {port: 9100, path: /livez}", ""},
		"livez with a query":              {"livenessProbe", "httpGet: {port: 9100, path: '/livez?verbose'}", ""},
		"livez, escaped":                  {"livenessProbe", "httpGet: {port: 9100, path: /%6civez}", ""},
		"livez without a slash":           {"livenessProbe", "httpGet: {port: 9100, path: livez}", ""},
		"healthz for readiness":           {"readinessProbe", "httpGet: {port: 9100, path: /healthz, scheme: HTTP}", ""},
		"healthz":                         {"livenessProbe", "httpGet: {port: 9100, path: /healthz}", drains},
		"healthz with a query":            {"livenessProbe", "httpGet: {port: 9100, path: '/healthz?verbose'}", drains},
		"healthz at the start":            {"startupProbe", "httpGet: {port: 9100, path: /healthz}", drains},
		"gRPC":                            {"livenessProbe", "grpc: {port: 9100}", noGRPC + restarts + instead},
		"gRPC for readiness":              {"readinessProbe", "grpc: {port: 9100}", noGRPC + unready + instead},
		"TCP":                             {"livenessProbe", "tcpSocket: {port: 9100}", tcp + instead},
		"TCP for readiness":               {"readinessProbe", "tcpSocket: {port: 9100}", tcp + instead},
		"no path":                         {"livenessProbe", "httpGet: {port: 9100}", noPath + restarts + "write path: /livez"},
		"another path":                    {"readinessProbe", "httpGet: {port: 9100, path: /readyz}", noPath + unready + "write path: /livez"},
		"a path below":                    {"startupProbe", "httpGet: {port: 9100, path: /healthz/}", noPath + restarts + "write path: /livez"},
		"a path that begins so":           {"livenessProbe", "httpGet: {port: 9100, path: /healthzz}", noPath + restarts + "write path: /livez"},
		"an invalid path":                 {"livenessProbe", "httpGet: {port: 9100, path: 'a:b'}", noPath + restarts + "write path: /livez"},
		"HTTPS":                           {"livenessProbe", "httpGet: {port: 9100, path: /livez, scheme: HTTPS}", noTLS + restarts + "write scheme: HTTP"},
		"HTTPS for readiness":             {"readinessProbe", "httpGet: {port: 9100, path: /healthz, scheme: HTTPS}", noTLS + unready + "write scheme: HTTP"},
		"HTTPS, and a path that fails":    {"livenessProbe", "httpGet: {port: 9100, path: /healthz, scheme: HTTPS}", noTLS + restarts + "write path: /livez and scheme: HTTP"},
		"HTTPS, and another path":         {"readinessProbe", "httpGet: {port: 9100, path: /, scheme: HTTPS}", noTLS + unready + "write path: /livez and scheme: HTTP"},
		"another port":                    {"livenessProbe", "grpc: {port: 9101}", ""},
		"a hook, whose answer is ignored": {"lifecycle", "preStop: {httpGet: {port: 9100, path: /bye, scheme: HTTPS}}", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var want []string
			if tc.want != "" {
				want = []string{"containers[app]." + tc.kind + ": " + tc.want}
			}
			for _, annotations := range []string{`sonde.dev/lb-health-port: "9100"`, `sonde.dev/lb-health-port: "9100", sonde.dev/virtual-probes-mode: per-port`} {
				injected, warnings := inject(t, podWith(annotations, tc.kind+": {"+tc.probe+"}"), webhook.Options{Sidecar: webhook.Native})
				if diff := cmp.Diff(want, warnings); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
				if _, again := inject(t, injected, webhook.Options{Sidecar: webhook.Native}); !cmp.Equal(want, again) {
					t.Errorf("warnings when it is injected again: %q, want %q", again, want)
				}
			}
		})
	}
}
