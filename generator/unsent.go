package generator

import (
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// headerUnsent is in the response of a server's Envoy that could not connect to the application. The application has
// received no byte of the request, so the client's Envoy may send it to another endpoint. Without the header the
// client's Envoy could not distinguish this 503 from the application's own.
const headerUnsent = "x-sonde-unsent"

// markUnsent adds headerUnsent to Envoy's own responses when it could not connect (Envoy:
// configuration/http/http_conn_man/local_reply, configuration/observability/access_log/usage, response flag UF).
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

// hideUnsent removes headerUnsent from responses that an application sends or receives, since it is only for Envoys.
// markUnsent adds the header later, so that one stays.
func hideUnsent(r *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	r.ResponseHeadersToRemove = []string{headerUnsent}
	return r
}
