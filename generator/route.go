package generator

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// OutboundRoute returns the route that sends every request to the service, or nil for TCP.
func OutboundRoute(s *meshview.Service) *routev3.RouteConfiguration {
	if !s.Protocol.IsHTTP() {
		return nil
	}
	return hideUnsent(routeConfiguration(s.Name, &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Name},
		Timeout:          durationpb.New(0),
		RetryPolicy:      retryUnsent(),
		HashPolicy:       hashCaller(s),
	}, anyRequest()...))
}

// inboundRoute replaces noHost by the host name of the endpoint, see inboundEndpoint (Envoy:
// api-v3/config/route/v3/route_components.proto, auto_host_rewrite). If holds is true, it holds requests while the
// proxy ends.
func inboundRoute(cluster string, holds bool) *routev3.RouteConfiguration {
	action := func() *routev3.RouteAction {
		return &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(0),
		}
	}
	named, unnamed := routeConfiguration(cluster, action(), anyRequest()...), action()
	unnamed.HostRewriteSpecifier = &routev3.RouteAction_AutoHostRewrite{AutoHostRewrite: wrapperspb.Bool(true)}
	other := routeConfiguration(noHost, unnamed, anyRequest()...).GetVirtualHosts()[0]
	other.Domains = []string{noHost}
	named.VirtualHosts = append(named.VirtualHosts, other)
	if host := named.GetVirtualHosts()[0]; holds { // not for HTTP/1.0, which keeps no connection open
		host.Routes = append(holdRoutes(host.GetRoutes()[0]), host.GetRoutes()...)
	}
	return hideUnsent(named)
}

// routeConfiguration returns routes for all hosts, with one action for all requests that match one of matches.
func routeConfiguration(
	name string, action *routev3.RouteAction, matches ...*routev3.RouteMatch,
) *routev3.RouteConfiguration {
	host := &routev3.VirtualHost{Name: name, Domains: []string{"*"}}
	for _, m := range matches {
		host.Routes = append(host.Routes, &routev3.Route{Match: m, Action: &routev3.Route_Route{Route: action}})
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{host}}
}

// anyRequest matches each path, and CONNECT, which has no path and asks the application to act as a proxy (Envoy:
// api-v3/config/route/v3/route_components.proto, connect_matcher).
func anyRequest() []*routev3.RouteMatch {
	return []*routev3.RouteMatch{
		{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		{PathSpecifier: &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}},
	}
}

// hostSelections is how often a retry selects an endpoint to find a different one. Least request prefers a dead
// endpoint, since that is idle: with two endpoints, up to three in four selections choose it, so with 5 selections one
// retry in four still used the dead one.
const hostSelections = 32

// retryUnsent retries requests that no application has received, on another endpoint if there is one. Retrying any
// other request might execute it twice (Envoy: configuration/http/http_filters/router_filter, x-envoy-retry-on).
func retryUnsent() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    "connect-failure,refused-stream,reset-before-request,retriable-headers",
		NumRetries: wrapperspb.UInt32(2),
		RetriableHeaders: []*routev3.HeaderMatcher{{
			Name: headerUnsent, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}},
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: resource.Any(&previoushostsv3.PreviousHostsPredicate{}),
			},
		}},
		HostSelectionRetryMaxAttempts: hostSelections,
	}
}
