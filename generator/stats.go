package generator

import (
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// statsConfig keeps the statistics that operators and the agent read. Envoy creates about 200 for each cluster, which
// cost memory in each proxy. docs/naming.md lists the kept ones.
func statsConfig() *metricsv3.StatsConfig {
	patterns := make([]*matcherv3.StringMatcher, 0, len(statPrefixes)+len(statPatterns))
	for _, p := range statPrefixes {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p}})
	}
	for _, p := range statPatterns {
		patterns = append(patterns, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: p}},
		})
	}
	return &metricsv3.StatsConfig{StatsMatcher: &metricsv3.StatsMatcher{
		StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
			InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns},
		},
	}}
}

var statPrefixes = [...]string{
	"server.", "control_plane.", "listener_manager.", "cluster_manager.", "sds.", "overload.", "runtime.load_",
}

var statPatterns = [...]string{
	`^listener\..*\.downstream_cx_(total|active|length_ms|overflow|overload_reject|transport_socket_connect_timeout)$`,
	`^listener\..*\.(no_filter_chain_match|downstream_global_cx_overflow|downstream_pre_cx_(active|timeout))$`,
	`^(listener|cluster)\..*\.ssl\.(handshake|session_reused|connection_error|no_certificate|fail_verify_[a-z_]+)$`,
	`^(listener\..*|cluster\.control_plane)\.ssl\.certificate\..*\.expiration_unix_time_seconds$`,
	`^http\..*\.downstream_(rq_(total|active|completed|[1-5]xx|time|rx_reset|tx_reset|too_large)|cx_(total|active|protocol_error))$`,
	`^http\.inbound_.*\.downstream_cx_tx_bytes_buffered$`,
	`^http\..*\.downstream_rq_(ws_on_non_ws_route|non_relative_path)$`,
	`^cluster\.inbound_.*\.upstream_cx_protocol_error$`,
	`^tcp\..*\.downstream_cx_(total|no_route|rx_bytes_total|tx_bytes_total)$`,
	`^cluster\..*\.upstream_rq_(total|active|pending_active|pending_failure_eject|completed|[1-5]xx|time|timeout|retry|retry_success|rx_reset|tx_reset)$`,
	`^cluster\..*\.upstream_cx_(total|active|connect_fail|connect_timeout|connect_attempts_exceeded|none_healthy|rx_bytes_total|tx_bytes_total)$`,
	`^cluster\..*\.(membership_(total|healthy)|lb_healthy_panic|bind_errors|update_(success|failure|rejected|empty))$`,
	`^access_logs\.open_telemetry_access_log\..*\.logs_(written|dropped)$`,
	`^cluster\..*\.outlier_detection\.ejections_(active|enforced_total|overflow)$`,
}
