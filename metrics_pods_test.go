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
Each injected pod serves the metrics of its agent and its Envoy at ` + "`/metrics`" + ` of port 5670, in plain HTTP, even in a STRICT mesh. These metrics show which services the pod calls, and how often. Limit clients to Prometheus with a NetworkPolicy.

The webhook sets the annotations ` + "`prometheus.io/scrape: \"true\"`, `prometheus.io/port`" + ` and ` + "`prometheus.io/path`" + `, unless the pod already has one of them for its application. Each pod that serves these metrics also has the
annotation ` + "`sonde.dev/metrics-port`" + `. This scrape job reads it, and so scrapes all pods of the mesh:

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

With the Prometheus Operator, the chart's value ` + "`monitoring.podMonitor.enabled`" + ` creates a PodMonitor with the same effect; it adds the pod's mesh as the label ` + "`mesh`" + `. ` + "`monitoring.serviceMonitor.enabled`" + ` creates a ServiceMonitor
for the control plane and the watchdog.

| for | set |
|---|---|
| another port for a pod, or none | its annotation ` + "`sonde.dev/metrics-port: \"9100\"`" + `, or ` + "`\"0\"`" + ` |
| another port for pods without the annotation, or none | the chart's ` + "`config.runtime.kubernetes.injector.sidecarMetricsPort`" + ` |
| other metrics of Envoy | the chart's ` + "`config.runtime.kubernetes.injector.sidecarMetricsInclude`" + `, a list of name prefixes; ` + "`[envoy_]`" + ` means all |
| the port outside Kubernetes, where it is off by default | ` + "`sonde-dp run --metrics-addr=:5670 --metrics-include=…`" + `; with redirection also ` + "`sonde-dp install transparent-proxy --metrics-port=5670`" + ` |

A pod keeps the port with which it was injected. The webhook rejects a pod that declares or probes this port itself. Its message names both fields: change one of them.

| if | then |
|---|---|
| Envoy does not run, or does not respond within 5 s | the page has only the agent's metrics, and ` + "`sonde_dpagent_envoy_scrape_success 0`" + ` |
| Envoy's response breaks off | the agent closes the connection |
| a scrape has waited for 3.5 s, because Envoy serves at most two scrapes at once and four per second for all clients | the agent responds with 503 and ` + "`Retry-After`" + `, and counts the scrape in ` + "`sonde_dpagent_scrapes_total{result=\"busy\"}`" + ` |

**Number of series.** Each service that the pod can call adds 2 series, or 46 after the first call; each inbound adds about as many. To have fewer series, limit the services that the pod can call
(` + "`kuma.io/transparent-proxying-reachable-services`" + `), or the scraped metrics.

| services in the mesh | series, no service called | series, ten called | all series of Envoy, ten called | size of the page, ten called |
|---|---|---|---|---|
| 10 | 173 | 615 | 1,536 | 65 KiB |
| 100 | 353 | 795 | 1,806 | 79 KiB |
| 500 | 1,155 | 1,595 | 3,007 | 144 KiB |

[benchmarks.md](benchmarks.md#scrapes-of-pods) has the cost of scrapes. By default, the port for Prometheus serves only the metrics of Envoy in the table below, by name prefix. ` + "`--admin-addr`" + `, on loopback, serves all of Envoy's metrics that were used since its start
([statistics](naming.md#statistics)).

| metrics of Envoy | meaning |
|---|---|
`
