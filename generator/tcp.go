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

// maxEarlyData of a client wait for the connection to the application; the rest waits in the kernel.
const maxEarlyData = 64 << 10

func filter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{
		Name:       name,
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: resource.Any(config)},
	}
}

// tcpProxy carries bytes to the cluster for as long as both ends want: applications keep idle connections for days.
func tcpProxy(stat, cluster string, attempts uint32) *tcpproxyv3.TcpProxy {
	return &tcpproxyv3.TcpProxy{
		StatPrefix:         stat,
		ClusterSpecifier:   &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:        durationpb.New(0),
		MaxConnectAttempts: wrapperspb.UInt32(attempts),
	}
}

// afterHandshake connects to the application only when the client has proved who it is. Envoy would connect at once, so
// that whoever reaches the port could make connections to the application.
func afterHandshake(p *tcpproxyv3.TcpProxy) *tcpproxyv3.TcpProxy {
	p.UpstreamConnectMode = tcpproxyv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE
	p.MaxEarlyDataBytes = wrapperspb.UInt32(maxEarlyData)
	return p
}

func tcpFilter(p *tcpproxyv3.TcpProxy) *listenerv3.Filter {
	return filter("envoy.filters.network.tcp_proxy", p)
}

// hangUp closes the connection.
func hangUp() *listenerv3.Filter {
	return filter("envoy.filters.network.direct_response", &directresponsev3.Config{})
}
