package generator

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	directresponsev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/direct_response/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// connectAttempts on a service: a connection that was never made loses nothing. As many as it takes outlier detection to
// see that an endpoint is dead.
const connectAttempts = 5

func filter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{
		Name:       name,
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: resource.Any(config)},
	}
}

// tcpProxy carries bytes to the cluster for as long as both ends want: applications keep idle connections for days.
func tcpProxy(stat, cluster string, attempts uint32) *listenerv3.Filter {
	return filter("envoy.filters.network.tcp_proxy", &tcpproxyv3.TcpProxy{
		StatPrefix:         stat,
		ClusterSpecifier:   &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:        durationpb.New(0),
		MaxConnectAttempts: wrapperspb.UInt32(attempts),
	})
}

// hangUp closes the connection.
func hangUp() *listenerv3.Filter {
	return filter("envoy.filters.network.direct_response", &directresponsev3.Config{})
}
