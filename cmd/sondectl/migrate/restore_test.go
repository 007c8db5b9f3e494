package migrate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// application has each kind of probe and hook, with port numbers, since no mesh keeps port names.
const application = `
spec:
  containers:
  - name: app
    ports: [{containerPort: 8080}]
    startupProbe: {timeoutSeconds: 1, tcpSocket: {port: 8080}}
    livenessProbe: {timeoutSeconds: 5, grpc: {port: 9090, service: shop.v1.Orders}}
    readinessProbe: {timeoutSeconds: 2, httpGet: {path: "/ready?full=1", port: 8443, scheme: HTTPS, httpHeaders: [{name: Host, value: web}, {name: A, value: $(B)}]}}
    lifecycle: {preStop: {httpGet: {path: /stop, port: 8080, scheme: HTTP}}, postStart: {sleep: {seconds: 1}}}
  - name: other
    livenessProbe: {timeoutSeconds: 1, grpc: {port: 9091, service: ""}}
    readinessProbe: {exec: {command: [x]}}
`

// TestRestoreSonde checks that an injected pod gets back its original probes.
func TestRestoreSonde(t *testing.T) {
	tests := map[string]webhook.Options{
		"native":    {},
		"container": {Sidecar: webhook.Container},
		"per-port":  {ProbesMode: mesh.ProbesPerPort},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			want := podOf(t, application)
			injected, _, err := webhook.Inject(want, o)
			if err != nil {
				t.Fatal(err)
			}
			injected.Labels["kuma.io/sidecar-injection"] = "disabled" // for Kuma, with --kuma-labels=false
			before := injected.DeepCopy()
			got, rewritten, err := restore(injected, sidecarOf(injected))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.Spec.Containers, got.Spec.Containers); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
			if len(got.Spec.InitContainers) > 0 || len(got.Spec.Volumes) > 0 || len(rewritten) != 5 {
				t.Errorf("init containers %v, volumes %v, rewritten %v: want none, none and 5", got.Spec.InitContainers, got.Spec.Volumes, rewritten)
			}
			if diff := cmp.Diff(before, injected); diff != "" {
				t.Errorf("restore changed the pod that it was given:\n%s", diff)
			}
			delete(got.Labels, "kuma.io/sidecar-injection")
			if _, warnings, err := webhook.Inject(got, o); err != nil || len(warnings) > 0 {
				t.Errorf("Inject() of the restored pod = %q, %v", warnings, err)
			}
		})
	}
}

// TestRestoreBesideOthers checks that containers of another mesh do not affect the result.
func TestRestoreBesideOthers(t *testing.T) {
	for _, name := range []string{istioSidecar, istioInit, "istio-validation", "kuma-validation"} {
		t.Run(name, func(t *testing.T) {
			const app = "spec: {containers: [{name: a, livenessProbe: {timeoutSeconds: 1, tcpSocket: {port: 80}}}"
			const last = "{name: z, readinessProbe: {timeoutSeconds: 3, tcpSocket: {port: 81}}}]}"
			pod := podOf(t, app+", {name: "+name+", readinessProbe: {httpGet: {port: 15021, path: /healthz/ready}}}, "+last)
			want := podOf(t, app+", "+last)
			for _, mode := range []mesh.ProbesMode{mesh.ProbesUnified, mesh.ProbesPerPort} {
				injected, _, err := webhook.Inject(pod, webhook.Options{ProbesMode: mode})
				if err != nil {
					t.Fatal(err)
				}
				got, _, err := restore(injected, sidecarOf(injected))
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want.Spec.Containers, got.Spec.Containers); diff != "" {
					t.Errorf("%s: restored (-want +got):\n%s", mode, diff)
				}
			}
		})
	}
}

func TestRestore(t *testing.T) {
	const (
		virtual = `metadata: {annotations: {kuma.io/virtual-probes: enabled, kuma.io/virtual-probes-port: "9000", kuma.io/sidecar-injected: "true", mine: "1"}}
spec: {initContainers: [{name: kuma-init}], containers: [{name: kuma-sidecar, livenessProbe: {httpGet: {port: 9901}}}, {name: app, `
		proxy = `metadata: {annotations: {kuma.io/application-probe-proxy-port: "9001", mine: "1"}}
spec: {containers: [{name: kuma-sidecar}, {name: app, `
		istio = `metadata: {annotations: {sidecar.istio.io/status: "{}", mine: "1"}}
spec: {containers: [{name: istio-proxy, env: [{name: ISTIO_KUBE_APP_PROBERS, value: '{"/app-health/app/livez":{"tcpSocket":{"port":80}},"/app-lifecycle/app/prestopz":{"httpGet":{"path":"/stop","port":80}}}'}]}, {name: app, `
	)
	tests := map[string]struct{ pod, want string }{
		"kuma, http":             {virtual + "livenessProbe: {httpGet: {path: /8080/a/b, port: 9000}}}]}", "livenessProbe: {httpGet: {path: /a/b, port: 8080}}"},
		"kuma, https":            {virtual + "livenessProbe: {httpGet: {path: /8080/, port: 9000, scheme: HTTPS}}}]}", "livenessProbe: {httpGet: {path: /, port: 8080, scheme: HTTPS}}"},
		"kuma, header":           {virtual + "livenessProbe: {httpGet: {path: /80/a, port: 9000, httpHeaders: [{name: X-Kuma-Probes-Host, value: a}]}}}]}", "livenessProbe: {httpGet: {path: /a, port: 80, httpHeaders: [{name: X-Kuma-Probes-Host, value: a}]}}"},
		"kuma, another port":     {virtual + "livenessProbe: {httpGet: {path: /8080/a, port: 9002}}}]}", "livenessProbe: {httpGet: {path: /8080/a, port: 9002}}"},
		"kuma, another path":     {virtual + "livenessProbe: {httpGet: {path: /a/8080, port: 9000}}}]}", "livenessProbe: {httpGet: {path: /a/8080, port: 9000}}"},
		"kuma, no tcp":           {virtual + "livenessProbe: {httpGet: {path: /tcp/8080, port: 9000}}}]}", "livenessProbe: {httpGet: {path: /tcp/8080, port: 9000}}"},
		"kuma, tcp":              {virtual + "livenessProbe: {tcpSocket: {port: 9000}}}]}", "livenessProbe: {tcpSocket: {port: 9000}}"},
		"kuma, no hooks":         {virtual + "lifecycle: {preStop: {httpGet: {path: /8080/a, port: 9000}}}}]}", "lifecycle: {preStop: {httpGet: {path: /8080/a, port: 9000}}}"},
		"proxy, tcp":             {proxy + "livenessProbe: {timeoutSeconds: 3, httpGet: {path: /tcp/80, port: 9001, httpHeaders: [{name: X-Kuma-Probes-Timeout, value: '3'}]}}}]}", "livenessProbe: {timeoutSeconds: 3, tcpSocket: {port: 80}}"},
		"proxy, grpc":            {proxy + "livenessProbe: {httpGet: {path: /grpc/80, port: 9001}}}]}", "livenessProbe: {grpc: {port: 80}}"},
		"proxy, grpc service":    {proxy + "livenessProbe: {httpGet: {path: /grpc/80, port: 9001, httpHeaders: [{name: X-Kuma-Probes-GRPC-Service, value: a.B}]}}}]}", "livenessProbe: {grpc: {port: 80, service: a.B}}"},
		"proxy, http":            {proxy + "livenessProbe: {httpGet: {path: '/80/a?b', port: 9001, httpHeaders: [{name: A, value: b}, {name: X-Kuma-Probes-Host, value: h}, {name: X-Kuma-Probes-Scheme, value: HTTPS}]}}}]}", "livenessProbe: {httpGet: {path: '/a?b', port: 80, scheme: HTTPS, httpHeaders: [{name: A, value: b}, {name: Host, value: h}]}}"},
		"proxy, no such port":    {proxy + "livenessProbe: {httpGet: {path: /tcp/70000, port: 9001}}}]}", "livenessProbe: {httpGet: {path: /tcp/70000, port: 9001}}"},
		"istio":                  {istio + "livenessProbe: {httpGet: {path: /app-health/app/livez, port: 15020}}, lifecycle: {preStop: {httpGet: {path: /app-lifecycle/app/prestopz, port: 15020}}}}]}", "livenessProbe: {tcpSocket: {port: 80}}, lifecycle: {preStop: {httpGet: {path: /stop, port: 80}}}"},
		"istio, not in its list": {istio + "livenessProbe: {httpGet: {path: /app-health/app/readyz, port: 15020}}}]}", "livenessProbe: {httpGet: {path: /app-health/app/readyz, port: 15020}}"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, tc.pod)
			got, _, err := restore(pod, sidecarOf(pod))
			if err != nil {
				t.Fatal(err)
			}
			want := podOf(t, `metadata: {annotations: {mine: "1"}}`+"\nspec: {containers: [{name: app, "+tc.want+"}]}")
			want.Spec.InitContainers = got.Spec.InitContainers[:0]
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("restored (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRestoreUnreadable(t *testing.T) {
	tests := map[string]struct{ pod, want string }{
		"istio": {"spec: {containers: [{name: app}, {name: istio-proxy, env: [{name: ISTIO_KUBE_APP_PROBERS, value: '['}]}]}", "containers[istio-proxy].env[ISTIO_KUBE_APP_PROBERS]: must be JSON:"},
		"sonde": {"spec: {containers: [{name: app}, {name: kuma-sidecar}], volumes: [{name: sonde-identity}]}", "containers[kuma-sidecar]: name is reserved for Sonde, which has not added this container"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOf(t, tc.pod)
			s := sidecarOf(pod)
			if _, _, err := restore(pod, s); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("restore() = %v, want %q", err, tc.want)
			}
			if f := findingsOf(pod, s); len(f) != 1 || f[0].Code != ProbesNotKnown {
				t.Errorf("findings = %v, want %s alone", f, ProbesNotKnown)
			}
		})
	}
}
