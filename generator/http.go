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

// Limits of the headers of one message: generous, since applications have limits of their own.
const (
	maxHeaders   = 1000
	maxHeadersKB = 256
	// maxRequestHeadersKB is less, since clients decide how many requests wait: Envoy holds their headers until they are answered.
	maxRequestHeadersKB = 96
)

const (
	// idleOutbound is less than the hour after which an inbound listener closes an idle connection, so that no request
	// is sent on a connection that is being closed.
	idleOutbound = 5 * time.Minute
	// idleInbound is less than the keep-alive time of all common servers, for the same reason. A new local connection
	// costs less than the rare request that meets a closing one.
	idleInbound = time.Second
	// headersTimeout is the longest time from the first to the last byte of a request's headers.
	headersTimeout = time.Minute
)

// httpProxy returns the connection manager of one port. It changes nothing that an application could notice: no timeouts,
// none of Envoy's headers, the same path and host (Envoy: faq/configuration/timeouts, configuration/http/http_conn_man/headers,
// intro/arch_overview/http/upgrades).
//
// defaultHost is the host of a request of HTTP/1.0 that names none; such requests are refused if it is empty.
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
		UpgradeConfigs:             []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
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
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: adsConfigSource(), RouteConfigName: name}}
	return filter("envoy.filters.network.http_connection_manager", h)
}

// http1Server returns the options of connections from clients. Clients that offer TLS by an upgrade (RFC 2817), as Apache's HttpClient
// does with each request, would get a 403: the offer is dropped, as any server may do.
func http1Server(defaultHost string) *corev3.Http1ProtocolOptions {
	o := http1()
	o.AcceptHttp_10, o.DefaultHostForHttp_10 = defaultHost != "", defaultHost
	o.IgnoreHttp_11Upgrade = []*matcherv3.StringMatcher{{
		MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "TLS/"},
		IgnoreCase:   true,
	}}
	return o
}

// http1 preserves what a connection without a proxy has: the case of header names, trailers
// (Envoy: configuration/http/http_conn_man/header_casing).
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

// outboundHTTP returns the options of connections to the endpoints of a service, in its protocol; nil for TCP.
func outboundHTTP(p mesh.Protocol) map[string]*anypb.Any {
	switch p {
	case mesh.ProtocolHTTP:
		return protocolOptions(idleOutbound, explicitHTTP1())
	case mesh.ProtocolHTTP2, mesh.ProtocolGRPC:
		return protocolOptions(idleOutbound, explicitHTTP2(outbound()))
	default:
		return nil
	}
}

// inboundHTTP returns the options of connections to the application; nil for TCP. With protocol "http" they use the
// version that the client used, since the application may well support HTTP/2 without TLS
// (Envoy: api-v3/extensions/upstreams/http/v3/http_protocol_options.proto).
func inboundHTTP(p mesh.Protocol) map[string]*anypb.Any {
	switch p {
	case mesh.ProtocolHTTP:
		return protocolOptions(idleInbound, &httpv3.HttpProtocolOptions{
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
				UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
					HttpProtocolOptions:  http1(),
					Http2ProtocolOptions: http2(toApplication()),
				},
			},
		})
	case mesh.ProtocolHTTP2, mesh.ProtocolGRPC:
		return protocolOptions(idleInbound, explicitHTTP2(toApplication()))
	default:
		return nil
	}
}

func protocolOptions(idle time.Duration, o *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	o.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{
		IdleTimeout:          durationpb.New(idle),
		MaxHeadersCount:      wrapperspb.UInt32(maxHeaders),
		MaxResponseHeadersKb: wrapperspb.UInt32(maxHeadersKB),
	}
	return httpOptions(o)
}

func httpOptions(o *httpv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": resource.Any(o)}
}

func explicitHTTP1() *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: http1(),
				},
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
