package generator

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	preservecasev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/header_formatters/preserve_case/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Limits of the headers of one message. They are generous, since applications have their own limits.
const (
	maxHeaders = 1000
	// maxClientHeaders is for requests from other proxies: each stream of fromClients may have this many.
	maxClientHeaders = 100
	maxHeadersKB     = 256
	// maxResponseHeaders equals curl's limit.
	maxResponseHeaders = 5000
	// maxRequestHeadersKB is smaller, since clients decide how many requests wait, and Envoy holds their headers until
	// they are answered.
	maxRequestHeadersKB = 96
)

const (
	// idleOutbound is shorter than the hour after which an inbound listener closes an idle connection, so that no request
	// is sent on a closing connection.
	idleOutbound = 5 * time.Minute
	// idleInbound is shorter than the keep-alive time of all common servers, for the same reason. A new local connection
	// costs less than the rare request on a closing one.
	idleInbound = time.Second
	// headersTimeout is the maximum time from the first to the last byte of a request's headers.
	headersTimeout = time.Minute
)

// httpProxy returns the connection manager of one port. It changes nothing that an application could notice: it sets no
// timeouts, adds none of Envoy's headers, and keeps path and host (Envoy: faq/configuration/timeouts,
// configuration/http/http_conn_man/headers, intro/arch_overview/http/upgrades).
//
// defaultHost is the host for HTTP/1.0 requests without a Host header; if it is empty, such requests are refused.
func httpProxy(stat, defaultHost string, f flow) *hcmv3.HttpConnectionManager {
	return &hcmv3.HttpConnectionManager{
		StatPrefix: stat,
		CodecType:  hcmv3.HttpConnectionManager_AUTO,
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{
			MaxHeadersCount: wrapperspb.UInt32(maxHeaders),
		},
		MaxRequestHeadersKb:        wrapperspb.UInt32(maxRequestHeadersKB),
		HttpProtocolOptions:        http1Server(defaultHost),
		Http2ProtocolOptions:       http2(f),
		RequestHeadersTimeout:      durationpb.New(headersTimeout),
		StreamIdleTimeout:          durationpb.New(0),
		ServerHeaderTransformation: hcmv3.HttpConnectionManager_PASS_THROUGH,
		GenerateRequestId:          wrapperspb.Bool(false),
		NormalizePath:              wrapperspb.Bool(false),
		Proxy_100Continue:          true,
		UpgradeConfigs:             upgradeConfigs(),
		HttpFilters: []*hcmv3.HttpFilter{{
			Name: "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{
				TypedConfig: resource.Any(&routerv3.Router{SuppressEnvoyHeaders: true}),
			},
		}},
	}
}

func withRoutes(h *hcmv3.HttpConnectionManager, r *routev3.RouteConfiguration) *listenerv3.Filter {
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: r}
	return filter("envoy.filters.network.http_connection_manager", h)
}

func withRDS(h *hcmv3.HttpConnectionManager, name string) *listenerv3.Filter {
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: adsConfigSource(),
		RouteConfigName: name}}
	return filter("envoy.filters.network.http_connection_manager", h)
}

// http1Server returns the options of connections from clients. Some clients, such as Apache's HttpClient, offer TLS by
// an upgrade with each request (RFC 2817), which Envoy would answer with 403. The offer is dropped, as any server may
// do.
func http1Server(defaultHost string) *corev3.Http1ProtocolOptions {
	o := http1()
	// for methods such as WebDAV's and Vault's; Envoy warns that the field is work in progress, but has no alternative
	o.AllowCustomMethods = true
	o.AcceptHttp_10, o.DefaultHostForHttp_10 = defaultHost != "", defaultHost
	o.IgnoreHttp_11Upgrade = []*matcherv3.StringMatcher{{
		MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "TLS/"},
		IgnoreCase:   true,
	}}
	return o
}

// http1 keeps properties of a connection without a proxy: the case of header names, and trailers (Envoy:
// configuration/http/http_conn_man/header_casing).
func http1() *corev3.Http1ProtocolOptions {
	return &corev3.Http1ProtocolOptions{
		EnableTrailers: true,
		HeaderKeyFormat: &corev3.Http1ProtocolOptions_HeaderKeyFormat{
			HeaderFormat: &corev3.Http1ProtocolOptions_HeaderKeyFormat_StatefulFormatter{
				StatefulFormatter: &corev3.TypedExtensionConfig{
					Name:        "envoy.http.stateful_header_formatters.preserve_case",
					TypedConfig: resource.Any(&preservecasev3.PreserveCaseFormatterConfig{}),
				},
			},
		},
	}
}

// http1Client returns the options of connections to servers. If a response has both Content-Length and chunks, clients
// use the chunks. Envoy does the same, and drops Content-Length. Envoy rejects such a request from a client, since a
// server behind a proxy could interpret it differently (RFC 9112, section 6.1).
func http1Client() *corev3.Http1ProtocolOptions {
	o := http1()
	o.AllowChunkedLength = true
	return o
}

// outboundHTTP returns the options of connections to the endpoints of a service, by its protocol; nil for TCP.
func outboundHTTP(p mesh.Protocol) map[string]*anypb.Any {
	switch p {
	case mesh.ProtocolHTTP:
		return protocolOptions(idleOutbound, asDownstream(toServices()))
	case mesh.ProtocolHTTP2, mesh.ProtocolGRPC:
		return protocolOptions(idleOutbound, explicitHTTP2(toServices()))
	default:
		return nil
	}
}

// inboundHTTP returns the options of connections to the application; nil for TCP. With protocol "http" they use the
// client's HTTP version, since the application may support HTTP/2 without TLS (Envoy:
// api-v3/extensions/upstreams/http/v3/http_protocol_options.proto).
func inboundHTTP(p mesh.Protocol) map[string]*anypb.Any {
	switch p {
	case mesh.ProtocolHTTP:
		return protocolOptions(idleInbound, asDownstream(toApplication()))
	case mesh.ProtocolHTTP2, mesh.ProtocolGRPC:
		return protocolOptions(idleInbound, explicitHTTP2(toApplication()))
	default:
		return nil
	}
}

func protocolOptions(idle time.Duration, o *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	o.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{
		IdleTimeout:          durationpb.New(idle),
		MaxHeadersCount:      wrapperspb.UInt32(maxResponseHeaders),
		MaxResponseHeadersKb: wrapperspb.UInt32(maxHeadersKB),
	}
	return httpOptions(o)
}

func httpOptions(o *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": resource.Any(o)}
}

// asDownstream uses the client's HTTP version towards the server: a client that sends HTTP/2 without TLS knows that the
// application accepts it (Envoy: api-v3/extensions/upstreams/http/v3/http_protocol_options.proto,
// use_downstream_protocol_config).
func asDownstream(f flow) *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
			UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
				HttpProtocolOptions:  http1Client(),
				Http2ProtocolOptions: http2(f),
			},
		},
	}
}

func explicitHTTP2(f flow) *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: http2(f),
				},
			},
		},
	}
}
