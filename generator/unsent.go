package generator

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// headerUnsent is in the answer of a server's Envoy that could not connect to the application: no byte of the request has reached it, so
// that the client's Envoy may send it to another endpoint. Without it that one could not tell such a 503 from the application's own.
const headerUnsent = "x-sonde-unsent"

// markUnsent adds headerUnsent where Envoy answers itself, since it could not connect
// (Envoy: configuration/http/http_conn_man/local_reply, configuration/observability/access_log/usage, response flag UF).
func markUnsent() *hcmv3.LocalReplyConfig {
	return &hcmv3.LocalReplyConfig{Mappers: []*hcmv3.ResponseMapper{{
		Filter: &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"UF"}},
		}},
		HeadersToAdd: []*corev3.HeaderValueOption{{
			Header:       &corev3.HeaderValue{Key: headerUnsent, Value: "true"},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
	}}}
}

// hideUnsent removes headerUnsent from what an application answers, or gets as an answer: it is between Envoys alone. The mark of
// markUnsent comes later, and stays.
func hideUnsent(r *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	r.ResponseHeadersToRemove = []string{headerUnsent}
	return r
}
