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

// connectAttempts is how often Envoy tries to connect to a service: as often as outlier detection needs to eject a dead
// endpoint. A failed connection attempt loses no data.
const connectAttempts = 5

// maxEarlyData is how many bytes of a client are buffered until the application is connected. Further data waits in the
// kernel.
const maxEarlyData = 64 << 10

func filter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{
		Name:       name,
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: resource.Any(config)},
	}
}

// tcpProxy forwards bytes to the cluster without an idle timeout: applications keep idle connections for days.
func tcpProxy(stat, cluster string, attempts uint32) *tcpproxyv3.TcpProxy {
	return &tcpproxyv3.TcpProxy{
		StatPrefix:         stat,
		ClusterSpecifier:   &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:        durationpb.New(0),
		MaxConnectAttempts: wrapperspb.UInt32(attempts),
	}
}

// connectAfterHandshake makes the proxy connect to the application only after the client is authenticated. By default
// Envoy connects at once, so any client that reaches the port could open connections to the application (Envoy:
// api-v3/extensions/filters/network/tcp_proxy/v3/tcp_proxy.proto, upstream_connect_mode).
func connectAfterHandshake(p *tcpproxyv3.TcpProxy) *tcpproxyv3.TcpProxy {
	p.UpstreamConnectMode = tcpproxyv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE
	p.MaxEarlyDataBytes = wrapperspb.UInt32(maxEarlyData)
	return p
}

func tcpFilter(p *tcpproxyv3.TcpProxy) *listenerv3.Filter {
	return filter("envoy.filters.network.tcp_proxy", p)
}

// closeConnection returns the filter that closes a connection at once.
func closeConnection() *listenerv3.Filter {
	return filter("envoy.filters.network.direct_response", &directresponsev3.Config{})
}
