package agent

import (
	"bytes"
	"testing"
	"text/template"

	"github.com/sonde-mesh/sonde/test/must"
)

// ports of a test's Envoy and of the applications behind it. A listener without a port is omitted.
type ports struct {
	HTTP, HTTPApp, TCP, TCPApp string
	// LDS is a file with more listeners, and Silent is the port of a server that never sends their
	// routes.
	LDS, Silent string
	// Older selects the bootstrap of a release whose agents could not change the runtime.
	Older bool
}

// bootstrap is Envoy's whole configuration, with the names that the control plane would send over ADS. The kernel
// buffers little of an HTTP response (SO_SNDBUF), so that Envoy holds the data that clients do not read.
func bootstrap(t testing.TB, p ports) []byte {
	t.Helper()
	var out bytes.Buffer
	must.Do(t, bootstrapTemplate.Execute(&out, p))
	return out.Bytes()
}

var bootstrapTemplate = template.Must(template.New("bootstrap").Parse(`{
{{define "cluster"}}"connect_timeout": "1s", "load_assignment": {"cluster_name": "x", "endpoints": [{"lb_endpoints": [
    {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.}}}}}}]}]}{{end}}
"node": {"id": "default/web-1", "cluster": "web"},
"admin": {"address": {"pipe": {"path": "admin.sock", "mode": 384}}},
"layered_runtime": {"layers": [{"name": "agent", {{if .Older}}"static_layer"{{else}}"admin_layer"{{end}}: {}}]},
"overload_manager": {"resource_monitors": [{"name": "envoy.resource_monitors.global_downstream_max_connections", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
  "max_active_downstream_connections": 1000}}]},
{{if .LDS}}"dynamic_resources": {"lds_config": {"resource_api_version": "V3", "path_config_source": {"path": "{{.LDS}}"}}},{{end}}
"static_resources": {"clusters": [
  {{if .Silent}}{"name": "silent", "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}},
   {{template "cluster" .Silent}}}{{end}}
  {{if .HTTP}}{"name": "inbound:{{.HTTPApp}}", {{template "cluster" .HTTPApp}}},
  {"name": "inbound:{{.TCPApp}}", {{template "cluster" .TCPApp}}}{{end}}
], "listeners": [
{{if .HTTP}}{"name": "inbound:127.0.0.1:{{.HTTP}}", "stat_prefix": "inbound_{{.HTTP}}", "traffic_direction": "INBOUND",
 "socket_options": [{"level": 1, "name": 7, "int_value": 16384, "state": "STATE_PREBIND"}],
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.HTTP}}}},
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "inbound_{{.HTTP}}",
  "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"timeout": "0s", "cluster": "inbound:{{.HTTPApp}}"}}]}]},
  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]},
{"name": "inbound:127.0.0.1:{{.TCP}}", "stat_prefix": "inbound_{{.TCP}}", "traffic_direction": "INBOUND",
 "address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.TCP}}}},
 "filter_chains": [{"filters": [{"name": "tcp", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
  "stat_prefix": "inbound_{{.TCP}}", "cluster": "inbound:{{.TCPApp}}"}}]}]},{{end}}
{"name": "readiness", "stat_prefix": "readiness", "address": {"pipe": {"path": "ready.sock", "mode": 384}},
 "filter_chains": [{"filters": [{"name": "http", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
  "stat_prefix": "readiness",
  "route_config": {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [{"match": {"path": "/ready"}, "direct_response": {"status": 200}}]}]},
  "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}
]}}`))
