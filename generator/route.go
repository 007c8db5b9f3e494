package generator

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// OutboundRoute returns the route that sends every request to the service, nil for TCP.
func OutboundRoute(s *meshview.Service) *routev3.RouteConfiguration {
	if !s.Protocol.IsHTTP() {
		return nil
	}
	return hideUnsent(routeConfiguration(s.Name, anyPath(), &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Name},
		Timeout:          durationpb.New(0),
		RetryPolicy:      retryUnsent(),
		HashPolicy:       hashCaller(s),
	}))
}

// inboundRoute replaces noHost by the host name of the endpoint, see inboundEndpoint
// (Envoy: api-v3/config/route/v3/route_components.proto, auto_host_rewrite). With holds it holds requests while the proxy ends.
func inboundRoute(cluster string, holds bool) *routev3.RouteConfiguration {
	action := func() *routev3.RouteAction {
		return &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
			Timeout:          durationpb.New(0),
		}
	}
	named, unnamed := routeConfiguration(cluster, anyPath(), action()), action()
	unnamed.HostRewriteSpecifier = &routev3.RouteAction_AutoHostRewrite{AutoHostRewrite: wrapperspb.Bool(true)}
	other := routeConfiguration(noHost, anyPath(), unnamed).GetVirtualHosts()[0]
	other.Domains = []string{noHost}
	named.VirtualHosts = append(named.VirtualHosts, other)
	if host := named.GetVirtualHosts()[0]; holds { // not of HTTP/1.0, which keeps no connection
		host.Routes = append(holdRoutes(host.GetRoutes()[0]), host.GetRoutes()...)
	}
	return hideUnsent(named)
}

func routeConfiguration(name string, match *routev3.RouteMatch, action *routev3.RouteAction) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: name,
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    name,
			Domains: []string{"*"},
			Routes:  []*routev3.Route{{Match: match, Action: &routev3.Route_Route{Route: action}}},
		}},
	}
}

func anyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// hostSelections is how often a retry selects an endpoint until it is another one than before. Least request prefers an endpoint
// that is dead and has nothing to do: of two endpoints three in four selections may hit it, so with 5 of them a retry in four
// went to the dead one again.
const hostSelections = 32

// retryUnsent retries requests that no application has seen, on another endpoint if there is one. Retrying any other
// request might execute it twice (Envoy: configuration/http/http_filters/router_filter, x-envoy-retry-on).
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
