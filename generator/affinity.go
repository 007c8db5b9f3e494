package generator

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sonde-mesh/sonde/meshview"
)

// A caller of a service with affinity is hashed to an endpoint, with the same table in all Envoys. There is no state
// that a restart or another worker would lose (Envoy: intro/arch_overview/upstream/load_balancing/load_balancers,
// Maglev). The caller of a redirected connection is its source address. The caller of a proxy's own outbounds, which
// only its own machine can reach, is the proxy itself. Docs: docs/decisions/044-service-policies.md.
const (
	callerState = "sonde.caller"
	// callerAddress ignores x-forwarded-for, which names the caller's own caller.
	callerAddress = "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"
)

// lbPolicy is least request for HTTP and round robin for TCP. With TCP, a dead endpoint would always have the fewest
// connections and attract each connection attempt, and Envoy cannot retry TCP on another host (Envoy:
// intro/arch_overview/upstream/load_balancing/load_balancers).
func lbPolicy(s *meshview.Service) clusterv3.Cluster_LbPolicy {
	switch {
	case s.Affinity:
		return clusterv3.Cluster_MAGLEV
	case s.Protocol.IsHTTP():
		return clusterv3.Cluster_LEAST_REQUEST
	}
	return clusterv3.Cluster_ROUND_ROBIN
}

// hashCaller returns the hash policy for requests, or nil for a service without affinity.
func hashCaller(s *meshview.Service) []*routev3.RouteAction_HashPolicy {
	if !s.Affinity {
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{{PolicySpecifier: &routev3.RouteAction_HashPolicy_FilterState_{
		FilterState: &routev3.RouteAction_HashPolicy_FilterState{Key: callerState},
	}}}
}

// nameCaller returns the filter that stores the caller for hashCaller and hashNamedCaller. caller is a format string.
func nameCaller(caller string) *listenerv3.Filter {
	return filter("envoy.filters.network.set_filter_state",
		&setstatev3.Config{OnNewConnection: []*commonv3.FilterStateValue{{
			Key:        &commonv3.FilterStateValue_ObjectKey{ObjectKey: callerState},
			FactoryKey: "envoy.hashable_string",
			Value: &commonv3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
					Specifier: &corev3.DataSource_InlineString{InlineString: caller},
				}},
			}},
		}}})
}

// hashSource is the hash policy of all redirected connections. It has no effect on services without affinity, so a
// change of the affinity changes no listener, which would close open connections.
func hashSource() []*typev3.HashPolicy {
	return []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}}}}
}

func hashNamedCaller() []*typev3.HashPolicy {
	return []*typev3.HashPolicy{{PolicySpecifier: &typev3.HashPolicy_FilterState_{
		FilterState: &typev3.HashPolicy_FilterState{Key: callerState}}}}
}

// outboundTCP returns the filters of connections to a service that is not HTTP. caller is empty for redirected
// connections.
func outboundTCP(s *meshview.Service, caller string) []*listenerv3.Filter {
	p := tcpProxy(outboundStat(s.Name), s.Name, connectAttempts)
	switch {
	case caller == "":
		p.HashPolicy = hashSource()
	case s.Affinity:
		p.HashPolicy = hashNamedCaller()
		return []*listenerv3.Filter{nameCaller(caller), tcpFilter(p)}
	}
	return []*listenerv3.Filter{tcpFilter(p)}
}
