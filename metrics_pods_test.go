package sonde_test

import (
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// podMetricsSection returns the last section of docs/metrics.md. test/real/mesh compares the list in it with real Envoys, test/bench/podmetrics has measured
// the numbers.
func podMetricsSection() string {
	var section strings.Builder
	section.WriteString(podMetricsText)
	for _, f := range mesh.DefaultMetricFamilies {
		_, _ = fmt.Fprintf(&section, "| `%s` | %s |\n", f.Prefix, f.Meaning) // never fails
	}
	return section.String()
}

const podMetricsText = "\n## Metrics of pods\n" + `
Each injected pod has the metrics of its agent and of its Envoy, as one page, at ` + "`/metrics`" + ` of port 5670 on all of its addresses. The page is plain HTTP, also in a STRICT mesh: the port is not redirected to Envoy, so a
Prometheus without a sidecar scrapes it, and one with a sidecar does, too. Nothing but ` + "`/metrics`" + ` is answered there. Who can connect can read which services the pod knows and how much it calls them; a NetworkPolicy limits that
to Prometheus.

The webhook writes ` + "`prometheus.io/scrape: \"true\"`, `prometheus.io/port` and `prometheus.io/path`" + `, by which many a Prometheus selects pods. A pod that has one of the three keeps what it has, with a warning, since it says where the metrics of
the application are. For such pods, and where one job is to have the mesh alone, ` + "`sonde.dev/metrics-port`" + ` is on every pod with such a port:

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

With the Prometheus Operator, ` + "`monitoring.podMonitor.enabled`" + ` of the chart makes a PodMonitor that does so, with one target for each pod and its mesh as label ` + "`mesh`" + `, and ` + "`monitoring.serviceMonitor.enabled`" + ` a ServiceMonitor for the
control plane and the watchdog. Each has an ` + "`interval`" + `, and ` + "`labels`" + ` by which a Prometheus selects it.

| to | set |
|---|---|
| take another port, or none, for a pod | its annotation ` + "`sonde.dev/metrics-port: \"9100\"`, or `\"0\"`" + ` |
| the same for all pods that do not say | ` + "`config.runtime.kubernetes.injector.sidecarMetricsPort`" + ` of the chart |
| choose other metrics of Envoy | ` + "`config.runtime.kubernetes.injector.sidecarMetricsInclude`" + `, prefixes of their names: ` + "`[envoy_]`" + ` is all |
| have such a port without Kubernetes, where by default there is none | ` + "`sonde-dp run --metrics-addr=:5670 --metrics-include=…`, and `sonde-dp install transparent-proxy --metrics-port=5670`" + ` if it redirects |

A pod keeps the port with which it was injected. A pod that declares or probes the port itself is refused, and both fields are named: give one of them another port.

If Envoy does not run, or does not answer within five seconds, the page has the agent's metrics alone, and ends with ` + "`sonde_dpagent_envoy_scrape_success 0`" + `. If Envoy stops in the middle, the connection is closed: half a page would
pass for a whole one. A line that Prometheus could not read, for which it would refuse the whole page, is left out, and counted in ` + "`sonde_dpagent_envoy_lines_dropped_total`" + `. Envoy is asked by two scrapes at once and four times a
second at most, sources taking turns: the one that has waited longest for its next, and after all others those that read too slowly. Who has waited for 3.5 seconds gets 503 with ` + "`Retry-After`" + `, and is counted in ` + "`sonde_dpagent_scrapes_total{result=\"busy\"}`" + `.

**How many series.** A service that is known takes 2, one that is called 46 (22 of them the histogram of request times), and an inbound about as many; the rest is the agent's and what Envoy has once. To limit them, limit what a pod knows
(` + "`kuma.io/transparent-proxying-reachable-services`" + `) or what is scraped.

| services in the mesh | series, none called | series, ten called | all of Envoy's, ten called | page, ten called |
|---|---|---|---|---|
| 10 | 173 | 615 | 1,536 | 65 KiB |
| 100 | 353 | 795 | 1,806 | 79 KiB |
| 500 | 1,155 | 1,595 | 3,007 | 144 KiB |

What scrapes cost is in [benchmarks.md](benchmarks.md#scrapes-of-pods). ` + "`--admin-addr`" + `, on loopback, has all of Envoy's metrics that were used since its start. Of those there are, Envoy's configuration keeps what
[naming.md](naming.md#statistics) lists; on the port for Prometheus, unless others are asked for, are those whose names begin with:

| metrics of Envoy | meaning |
|---|---|
`
