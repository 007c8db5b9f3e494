package dpagent_test

import (
	"bytes"
	"testing"
	"text/template"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

type agentMessage = agentv1.AgentMessage

// ports of a test's Envoy and of the applications behind it. A listener without a port is left out, and so is ADS.
type ports struct{ HTTP, HTTPApp, TCP, TCPApp, MTLS, ADS int }

// bootstrap is Envoy's whole configuration as the control plane would give it by ADS, with the same names. The kernel buffers little of an answer
// over HTTP (SO_SNDBUF), so that it is Envoy that has what clients do not read.
func bootstrap(t testing.TB, p ports) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := bootstrapTemplate.Execute(&out, p); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

var bootstrapTemplate = template.Must(template.New("bootstrap").Parse(`{
"node": {"id": "default/web-1", "cluster": "web"},
"admin": {"address": {"pipe": {"path": "admin.sock", "mode": 384}}},
"layered_runtime": {"layers": [{"name": "agent", "admin_layer": {}}]},
"overload_manager": {"resource_monitors": [{"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
  "max_active_downstream_connections": 1000}}]},
{{if .ADS}}"dynamic_resources": {"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {
  "cluster_name": "control-plane", "retry_policy": {"retry_back_off": {"base_interval": "0.1s", "max_interval": "0.2s"}}}}]}, "cds_config": {"ads": {}, "resource_api_version": "V3"}},{{end}}
"static_resources": {"clusters": [
  {{if .ADS}}{"name": "control-plane", "connect_timeout": "1s", "load_assignment": {"cluster_name": "control-plane", "endpoints": [{"lb_endpoints": [
    {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.ADS}}}}}}]}]},
   "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
   "transport_socket": {"name": "tls", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "sni": "sonde-cp.sonde.internal",
    "common_tls_context": {"alpn_protocols": ["h2"], "tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
     "tls_certificate_sds_secret_configs": [{"name": "identity", "sds_config": {"resource_api_version": "V3", "path_config_source": {"path": "sds/identity.json"}}}],
     "combined_validation_context": {"default_validation_context": {"match_typed_subject_alt_names": [{"san_type": "DNS", "matcher": {"exact": "sonde-cp.sonde.internal"}}]},
      "validation_context_sds_secret_config": {"name": "serving-ca", "sds_config": {"resource_api_version": "V3", "path_config_source": {"path": "sds/serving-ca.json"}}}}}}}}{{if or .HTTP .TCP}},{{end}}{{end}}
  {{define "cluster"}}{"name": "inbound:{{.}}", "connect_timeout": "1s", "load_assignment": {"cluster_name": "x", "endpoints": [{"lb_endpoints": [
    {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.}}}}}}]}]}}{{end}}
  {{if .HTTP}}{{template "cluster" .HTTPApp}}{{end}}{{if and .HTTP .TCP}},{{end}}{{if .TCP}}{{template "cluster" .TCPApp}}{{end}}
], "listeners": [
{{if .HTTP}}{"name": "inbound:127.0.0.1:{{.HTTP}}", "stat_prefix": "inbound_{{.HTTP}}", "traffic_direction": "INBOUND",
 "socket_options": [{"level": 1, "name": 7, "int_value": 16384, "state": "STATE_PREBIND"}],
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.HTTP}}}},
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "inbound_{{.HTTP}}",
  "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"timeout": "0s", "cluster": "inbound:{{.HTTPApp}}"}}]}]},
  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]},{{end}}
{{if .TCP}}{"name": "inbound:127.0.0.1:{{.TCP}}", "stat_prefix": "inbound_{{.TCP}}", "traffic_direction": "INBOUND",
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.TCP}}}},
 "filter_chains": [{"filters": [{"name": "tcp", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
  "stat_prefix": "inbound_{{.TCP}}", "cluster": "inbound:{{.TCPApp}}"}}]}]},{{end}}
{{if .MTLS}}{"name": "inbound:127.0.0.1:{{.MTLS}}", "stat_prefix": "inbound_{{.MTLS}}", "traffic_direction": "INBOUND",
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.MTLS}}}},
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "inbound_{{.MTLS}}",
  "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "hello"}}}]}]},
  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}],
 "transport_socket": {"name": "tls", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
  "require_client_certificate": true,
  "common_tls_context": {
   "tls_params": {"tls_minimum_protocol_version": "TLSv1_3"},
   "tls_certificate_sds_secret_configs": [{"name": "identity", "sds_config": {"resource_api_version": "V3", "path_config_source": {"path": "sds/identity.json"}}}],
   "combined_validation_context": {"default_validation_context": {},
    "validation_context_sds_secret_config": {"name": "ca", "sds_config": {"resource_api_version": "V3", "path_config_source": {"path": "sds/ca.json"}}}}}}}}]},{{end}}
{"name": "readiness", "stat_prefix": "readiness", "address": {"pipe": {"path": "ready.sock", "mode": 384}},
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "readiness",
  "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [{"match": {"path": "/ready"}, "direct_response": {"status": 200}}]}]},
  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}
]}}`))
