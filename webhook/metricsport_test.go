package webhook_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestMetricsPort checks a pod's arguments and annotations for Prometheus.
func TestMetricsPort(t *testing.T) {
	const stays = ": not changed, so a Prometheus that uses this annotation does not scrape the metrics of the pod at port 5670"
	field := func(name string) string { return `metadata.annotations["prometheus.io/` + name + `"]` }
	scraped := func(port string) map[string]string {
		return map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": port, "prometheus.io/path": "/metrics", "sonde.dev/metrics-port": port}
	}
	tests := map[string]struct {
		annotations   string
		options       webhook.Options
		init, sidecar []string // their arguments about the port
		want          map[string]string
		warnings      []string
	}{
		"by default": {init: []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"}, want: scraped("5670")},
		"another port": {
			annotations: `sonde.dev/metrics-port: "9100"`, init: []string{"--metrics-port", "9100"}, sidecar: []string{"--metrics-addr=:9100"}, want: scraped("9100"),
		},
		"none": {annotations: `sonde.dev/metrics-port: "0"`, want: map[string]string{"sonde.dev/metrics-port": "0"}},
		"none, and its own annotations": {
			annotations: `sonde.dev/metrics-port: "0", prometheus.io/scrape: "true"`, want: map[string]string{"sonde.dev/metrics-port": "0", "prometheus.io/scrape": "true"},
		},
		"none in this mesh": {options: webhook.Options{MetricsPort: new(int32(0))}, want: map[string]string{}},
		"none in this mesh, but in this pod": {
			annotations: `sonde.dev/metrics-port: "5670"`, options: webhook.Options{MetricsPort: new(int32(0))},
			init: []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"}, want: scraped("5670"),
		},
		"another port and other metrics in this mesh": {
			options: webhook.Options{MetricsPort: new(int32(9100)), MetricsInclude: []string{"envoy_server_", "envoy_http_"}},
			init:    []string{"--metrics-port", "9100"}, sidecar: []string{"--metrics-addr=:9100", "--metrics-include=envoy_server_,envoy_http_"}, want: scraped("9100"),
		},
		"metrics of its own": {
			annotations: `prometheus.io/scrape: "true", prometheus.io/port: "8080"`, init: []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"},
			want:     map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "sonde.dev/metrics-port": "5670"},
			warnings: []string{field("scrape") + ", " + field("port") + stays},
		},
		"not to be scraped": {
			annotations: `prometheus.io/scrape: "false"`, init: []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"},
			want: map[string]string{"prometheus.io/scrape": "false", "sonde.dev/metrics-port": "5670"}, warnings: []string{field("scrape") + stays},
		},
		"a path of its own": {
			annotations: `prometheus.io/path: ""`, init: []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"},
			want: map[string]string{"prometheus.io/path": "", "sonde.dev/metrics-port": "5670"}, warnings: []string{field("path") + stays},
		},
		"what is written anyway": {
			annotations: `prometheus.io/scrape: "true", prometheus.io/port: "5670", prometheus.io/path: /metrics`,
			init:        []string{"--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"}, want: scraped("5670"),
		},
		"excluded as well": { // also for Kuma, which uses the same port
			annotations: `traffic.kuma.io/exclude-inbound-ports: "5670,9800"`, init: []string{"9000,9800", "--metrics-port", "5670"}, sidecar: []string{"--metrics-addr=:5670"}, want: scraped("5670"),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
				tc.options.Sidecar = form
				pod, warnings := inject(t, podWith(tc.annotations, "livenessProbe: {httpGet: {port: 80}}"), tc.options)
				if diff := cmp.Diff(tc.warnings, warnings); diff != "" {
					t.Errorf("%s: warnings (-want +got):\n%s", form, diff)
				}
				got := maps.Clone(pod.Annotations)
				maps.DeleteFunc(got, func(key, _ string) bool {
					return !strings.HasPrefix(key, "prometheus.io/") && key != mesh.AnnotationMetricsPort
				})
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("%s: annotations (-want +got):\n%s", form, diff)
				}
				init := pod.Spec.InitContainers[len(pod.Spec.InitContainers)-1]
				if form == webhook.Native {
					init = pod.Spec.InitContainers[0]
				}
				for container, want := range map[string]struct{ args, about []string }{
					"kuma-init": {init.Args, tc.init}, "kuma-sidecar": {sidecarOf(t, pod).Args, tc.sidecar},
				} {
					about := slices.DeleteFunc(slices.Clone(want.args), func(arg string) bool {
						return !strings.Contains(arg, "metrics") && !slices.Contains(want.about, arg)
					})
					if diff := cmp.Diff(want.about, about, cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
						t.Errorf("%s: arguments of %s (-want +got):\n%s", form, container, diff)
					}
				}
				again, warnings := inject(t, pod, webhook.Options{Sidecar: form, MetricsPort: new(int32(9200))})
				if diff := cmp.Diff(pod, again); diff != "" || len(warnings) > 0 {
					t.Errorf("%s: the second injection warns %q, and changes:\n%s", form, warnings, diff)
				}
			}
		})
	}
}

// TestMetricsPortOfEarlierReleases injects a pod again whose sidecar has no port for Prometheus: its application may
// use that port.
func TestMetricsPortOfEarlierReleases(t *testing.T) {
	pod, _ := inject(t, podWith(`sonde.dev/metrics-port: "0"`, "ports: [{containerPort: 5670}]"), webhook.Options{})
	delete(pod.Annotations, mesh.AnnotationMetricsPort)
	again, warnings := inject(t, pod, webhook.Options{})
	if diff := cmp.Diff(pod, again); diff != "" || len(warnings) > 0 {
		t.Errorf("it warns %q, and changes:\n%s", warnings, diff)
	}
}

// TestMetricsPortInTheRange shows that probes never get the port for Prometheus.
func TestMetricsPortInTheRange(t *testing.T) {
	pod, _ := inject(t, podWith(`sonde.dev/metrics-port: "9001", sonde.dev/virtual-probes-mode: per-port`, "livenessProbe: {grpc: {port: 80}}, readinessProbe: {grpc: {port: 80}}"), webhook.Options{})
	for _, p := range []int32{pod.Spec.Containers[0].LivenessProbe.GRPC.Port, pod.Spec.Containers[0].ReadinessProbe.GRPC.Port} {
		if p != 9000 && p != 9002 {
			t.Errorf("a probe asks port %d, want 9000 and 9002", p)
		}
	}
}
