package mesh

import (
	"fmt"
	"strings"
)

// MetricFamilies are metrics of Envoy whose names begin with Prefix.
//
// +kubebuilder:object:generate=false
type MetricFamilies struct {
	// Prefix of the names, which all begin with envoyPrefix.
	Prefix string
	// Meaning is for the documentation.
	Meaning string
}

const (
	// envoyPrefix begins all names of Envoy's metrics, and of no others.
	envoyPrefix = "envoy_"
	// maxMetricPrefixes limits a list of prefixes.
	maxMetricPrefixes   = 100
	allowedMetricPrefix = "must be prefixes of Envoy's metrics with commas between them, such as " + envoyPrefix +
		"server_," + envoyPrefix + "http_: each " + envoyPrefix + " and then letters, digits and _"
	allowedMetricsNumber = "must be at most %d prefixes"
)

// DefaultMetricFamilies are the metrics of Envoy on the page of a pod by default. They answer what an operator alerts
// on: what Envoy refuses, results of requests and connections, and the duration of requests. Other metrics are for
// debugging.
var DefaultMetricFamilies = []MetricFamilies{
	{"envoy_server_live", "1 while Envoy serves"},
	{"envoy_server_state", "0 live, 1 draining, 2 and 3 starting"},
	{"envoy_server_uptime", "seconds since Envoy's start"},
	{"envoy_server_total_connections", "open connections of clients"},
	{"envoy_server_memory_", "bytes in Envoy's heap, allocated bytes, and bytes obtained from the machine"},
	{"envoy_server_days_until_first_cert_expiring", "days until the first of its certificates expires"},
	{"envoy_control_plane_connected_state", "1 while the control plane is connected"},
	{"envoy_cluster_manager_active_clusters", "clusters in use"},
	{"envoy_cluster_manager_warming_clusters", "clusters that wait for endpoints or secrets"},
	{"envoy_cluster_manager_cds_update_success", "updates of clusters that were accepted"},
	{"envoy_cluster_manager_cds_update_failure", "updates of clusters that failed"},
	{"envoy_cluster_manager_cds_update_rejected", "updates of clusters that Envoy rejected"},
	{"envoy_listener_manager_total_listeners_", "listeners that are active, draining, or warming"},
	{"envoy_listener_manager_listener_create_failure", "listeners that could not be created, for example because their port is in use"},
	{"envoy_listener_manager_lds_update_success", "updates of listeners that were accepted"},
	{"envoy_listener_manager_lds_update_failure", "updates of listeners that failed"},
	{"envoy_listener_manager_lds_update_rejected", "updates of listeners that Envoy rejected"},
	{"envoy_overload_envoy_", "usage of the limits of heap and connections, and active overload actions"},
	{"envoy_listener_downstream_cx_total", "connections that were accepted"},
	{"envoy_listener_downstream_cx_active", "connections that are open"},
	{"envoy_listener_downstream_cx_over", "connections rejected because of the limit of a listener or of Envoy's heap"},
	{"envoy_listener_downstream_cx_transport_socket_connect_timeout", "connections whose handshake took too long"},
	{"envoy_listener_downstream_global_cx_overflow", "connections rejected because of the limit of all listeners"},
	{"envoy_listener_no_filter_chain_match", "connections rejected by STRICT, or to a port that the pod does not have"},
	{"envoy_listener_ssl_", "TLS of clients: handshakes, errors and their reasons, expiry of certificates"},
	{"envoy_http_downstream_cx_", "connections of HTTP: total, open, protocol errors"},
	{"envoy_http_downstream_rq_",
		"requests: total, open, completed, by class of status, resets, and how long they took, as a histogram"},
	{"envoy_tcp_downstream_cx_", "connections that are not HTTP: total, without a route, bytes"},
	{"envoy_cluster_membership_", "endpoints of a service: total, healthy"},
	{"envoy_cluster_lb_healthy_panic", "choices of an endpoint in panic mode, among all endpoints because too few are healthy"},
	{"envoy_cluster_outlier_detection_", "endpoints that are ejected"},
	{"envoy_cluster_upstream_cx_", "connections to endpoints: total, open, failed, timed out, none healthy, bytes"},
	{"envoy_cluster_upstream_rq_total", "requests to endpoints"},
	{"envoy_cluster_upstream_rq_active", "requests to endpoints that are open"},
	{"envoy_cluster_upstream_rq_pending_", "requests that wait for a connection, or were cancelled"},
	{"envoy_cluster_upstream_rq_completed", "requests that were answered"},
	{"envoy_cluster_upstream_rq_xx", "the same, by class of status"},
	{"envoy_cluster_upstream_rq_timeout", "requests that took too long"},
	{"envoy_cluster_upstream_rq_retry", "retried requests, and successful retries"},
	{"envoy_cluster_upstream_rq_rx_reset", "requests that the endpoint has reset"},
	{"envoy_cluster_upstream_rq_tx_reset", "requests that Envoy has reset"},
	{"envoy_cluster_ssl_", "TLS to endpoints: handshakes, errors and their reasons"},
	{"envoy_cluster_bind_errors", "connections that failed for lack of a source port or address"},
}

// DefaultMetricPrefixes returns the prefixes of DefaultMetricFamilies.
func DefaultMetricPrefixes() []string {
	prefixes := make([]string, 0, len(DefaultMetricFamilies))
	for _, f := range DefaultMetricFamilies {
		prefixes = append(prefixes, f.Prefix)
	}
	return prefixes
}

// CheckMetricPrefixes returns a *FieldError for the first invalid prefix of Envoy's metrics in a list, nil if all are
// valid. An empty list is valid.
func CheckMetricPrefixes(field string, prefixes []string) error {
	if len(prefixes) > maxMetricPrefixes {
		return &FieldError{Field: field, Value: fmt.Sprint(len(prefixes), " prefixes"),
			Allowed: fmt.Sprintf(allowedMetricsNumber, maxMetricPrefixes)}
	}
	for _, p := range prefixes {
		if !strings.HasPrefix(p, envoyPrefix) || strings.ContainsFunc(p, isNotInMetricNames) {
			return &FieldError{Field: field, Value: p, Allowed: allowedMetricPrefix}
		}
	}
	return nil
}

func isNotInMetricNames(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
}
