package sonde_test

import (
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// podMetricsSection returns the last section of docs/metrics.md. test/real/mesh compares its list with real Envoys; its
// numbers are from test/bench/podmetrics.
func podMetricsSection() string {
	var section strings.Builder
	section.WriteString(podMetricsText)
	for _, f := range mesh.DefaultMetricFamilies {
		_, _ = fmt.Fprintf(&section, "| `%s` | %s |\n", f.Prefix, f.Meaning) // never fails
	}
	return section.String()
}

const podMetricsText = "\n## Metrics of pods\n" + `
Each injected pod serves the metrics of its agent and its Envoy at ` + "`/metrics`" + ` of port 5670, in plain HTTP, even in a STRICT mesh. Clients see which services the pod calls, and how often; limit them to Prometheus with a NetworkPolicy.

The webhook writes ` + "`prometheus.io/scrape: \"true\"`, `prometheus.io/port` and `prometheus.io/path`" + `, unless the pod already has one of them for its application. For such pods, and for a job that only
scrapes the mesh, every pod with this port has the annotation ` + "`sonde.dev/metrics-port`" + `:

` + "```yaml" + `
scrape_configs:
- job_name: sonde-pods
  kubernetes_sd_configs: [{role: pod}]
  relabel_configs:
  - {source_labels: [__meta_kubernetes_pod_phase], regex: Pending|Succeeded|Failed, action: drop}
  - {source_labels: [__meta_kubernetes_pod_annotation_sonde_dev_metrics_port], regex: "0|", action: drop}
  - {source_labels: [__meta_kubernetes_pod_ip], regex: "(.*:.*)", target_label: __tmp_host, replacement: "[$1]"}
  - {source_labels: [__meta_kubernetes_pod_ip], regex: "([^:]*)", target_label: __tmp_host}
  - {source_labels: [__tmp_host, __meta_kubernetes_pod_annotation_sonde_dev_metrics_port], separator: ":", target_label: __address__}
  - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
  - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
` + "```" + `

With the Prometheus Operator, ` + "`monitoring.podMonitor.enabled`" + ` of the chart creates a PodMonitor with the same effect, with the mesh of each pod as label ` + "`mesh`" + `, and ` + "`monitoring.serviceMonitor.enabled`" + ` a ServiceMonitor for the
control plane and the watchdog.

| to | set |
|---|---|
| use another port, or none, for a pod | its annotation ` + "`sonde.dev/metrics-port: \"9100\"`, or `\"0\"`" + ` |
| use another port, or none, for pods without the annotation | ` + "`config.runtime.kubernetes.injector.sidecarMetricsPort`" + ` of the chart |
| choose other metrics of Envoy | ` + "`config.runtime.kubernetes.injector.sidecarMetricsInclude`" + `, name prefixes: ` + "`[envoy_]`" + ` is all |
| enable the port without Kubernetes, where it is off by default | ` + "`sonde-dp run --metrics-addr=:5670 --metrics-include=…`, and `sonde-dp install transparent-proxy --metrics-port=5670`" + ` if it redirects |

A pod keeps the port with which it was injected. The webhook rejects a pod that declares or probes the port itself, and names both fields: change the port of one of them.

If Envoy does not run, or does not respond within five seconds, the page has only the agent's metrics, and ends with ` + "`sonde_dpagent_envoy_scrape_success 0`" + `. If Envoy's response breaks off, the agent closes the connection. Envoy serves at most two scrapes at once, and four per second, shared by the sources. A scrape that has waited for 3.5 seconds gets 503 with ` + "`Retry-After`" + `, and is counted in ` + "`sonde_dpagent_scrapes_total{result=\"busy\"}`" + `.

**How many series.** Each service of the pod has 2 series, each called service 46, and each inbound about as many. To reduce them,
reduce the pod's services (` + "`kuma.io/transparent-proxying-reachable-services`" + `) or the scraped metrics.

| services in the mesh | series, none called | series, ten called | all of Envoy's, ten called | page, ten called |
|---|---|---|---|---|
| 10 | 173 | 615 | 1,536 | 65 KiB |
| 100 | 353 | 795 | 1,806 | 79 KiB |
| 500 | 1,155 | 1,595 | 3,007 | 144 KiB |

[benchmarks.md](benchmarks.md#scrapes-of-pods) has the cost of scrapes. ` + "`--admin-addr`" + `, on loopback, serves all of Envoy's metrics that were used since its start ([statistics](naming.md#statistics)). By default, the port for Prometheus serves metrics whose names begin with:

| metrics of Envoy | meaning |
|---|---|
`
