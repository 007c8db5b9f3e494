package generator

import (
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

const connectTimeout = 5 * time.Second

// OutboundCluster is a service as each of its clients sees it. It holds nothing of one client.
func OutboundCluster(m *meshview.Mesh, s *meshview.Service) *clusterv3.Cluster {
	return outboundCluster(fromServer, m, s)
}

func outboundCluster(src source, m *meshview.Mesh, s *meshview.Service) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:             s.Name,
		ConnectTimeout:   durationpb.New(connectTimeout),
		LbPolicy:         balance(s.Protocol),
		CircuitBreakers:  unlimited(),
		OutlierDetection: outlierDetection(),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{
			TcpKeepalive: tcpKeepalive(),
		},
		TypedExtensionProtocolOptions: outboundHTTP(s.Protocol),
	}
	if src == inline {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.LoadAssignment = LoadAssignment(s)
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS()}
	}
	if mutualTLS(m) {
		c.TransportSocketMatches = socketMatches(src, m, s)
	}
	return c
}

// socketMatches names the endpoints that are spoken to in mutual TLS; the others get plain text, the default.
func socketMatches(src source, m *meshview.Mesh, s *meshview.Service) []*clusterv3.Cluster_TransportSocketMatch {
	mtls := []string{answersMTLS}
	if m.Spec.Mode() == mesh.ModeStrict {
		mtls = append(mtls, answersFirst)
	}
	socket := clientSocket(src, s)
	matches := make([]*clusterv3.Cluster_TransportSocketMatch, 0, len(mtls))
	for _, value := range mtls {
		matches = append(matches, &clusterv3.Cluster_TransportSocketMatch{
			Name:            value,
			Match:           socketMatch(value),
			TransportSocket: socket,
		})
	}
	return matches
}

// balance: requests go where the fewest are. Connections go round: there a dead endpoint, which always has the fewest,
// would draw each attempt of a client to itself, and no attempt can be told to go elsewhere.
func balance(p mesh.Protocol) clusterv3.Cluster_LbPolicy {
	if p.IsHTTP() {
		return clusterv3.Cluster_LEAST_REQUEST
	}
	return clusterv3.Cluster_ROUND_ROBIN
}

// outlierDetection takes out what is dead (no connection, or a gateway's 502, 503, 504), and not what answers 500.
// The panic threshold stays Envoy's: since unready endpoints are never here, all that it brings back is suspects, and at
// most half of the endpoints are suspects unless the others have left since.
func outlierDetection() *clusterv3.OutlierDetection {
	on, off := wrapperspb.UInt32(100), wrapperspb.UInt32(0)
	return &clusterv3.OutlierDetection{
		Interval:                       durationpb.New(2 * time.Second),
		BaseEjectionTime:               durationpb.New(10 * time.Second),
		MaxEjectionTime:                durationpb.New(10 * time.Second), // or each ejection lasts longer than the one before
		MaxEjectionPercent:             wrapperspb.UInt32(50),
		SplitExternalLocalOriginErrors: true,

		ConsecutiveLocalOriginFailure:          wrapperspb.UInt32(5),
		EnforcingConsecutiveLocalOriginFailure: on,
		ConsecutiveGatewayFailure:              wrapperspb.UInt32(5),
		EnforcingConsecutiveGatewayFailure:     on,

		EnforcingConsecutive_5Xx:        off,
		EnforcingSuccessRate:            off,
		EnforcingLocalOriginSuccessRate: off,
	}
}

// unlimited: Envoy's own limits (1,024 connections, requests and waiting ones; 3 retries at a time) would turn load into
// 503 for which nobody asked. Connections are limited once for all, see Bootstrap.
func unlimited() *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(math.MaxUint32)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit,
		MaxPendingRequests: limit,
		MaxRequests:        limit,
		MaxRetries:         limit,
	}}}
}

// InboundClusters lead to the application of p, one for each inbound; with transparentProxying also to the agent's
// readiness and, unless the mode is STRICT, to the ports that the Dataplane does not name.
func InboundClusters(m *meshview.Mesh, p *meshview.Proxy) []*clusterv3.Cluster {
	net := &p.Dataplane.Spec.Networking
	redirected := net.TransparentProxying != nil
	var clusters []*clusterv3.Cluster
	for i := range net.Inbound {
		clusters = append(clusters, inboundCluster(p.Dataplane, &net.Inbound[i]))
	}
	if redirected {
		clusters = append(clusters, agentReadiness())
		if m.Spec.Mode() != mesh.ModeStrict {
			c := passthrough(NameInboundPassthrough, "inbound_passthrough")
			c.UpstreamBindConfig = pastRedirection()
			clusters = append(clusters, c)
		}
	}
	return clusters
}

func inboundCluster(d *mesh.Dataplane, in *mesh.Inbound) *clusterv3.Cluster {
	name := inboundClusterName(d, in)
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          inboundStat(in),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      unlimited(),
		LoadAssignment:       assignment(name, socketAddress(addrPort(in.ServiceAddress, in.ServicePort))),

		TypedExtensionProtocolOptions: inboundHTTP(in.Tags.Protocol()),
	}
	if d.Spec.Networking.TransparentProxying != nil {
		c.UpstreamBindConfig = pastRedirection()
	}
	return c
}

func agentReadiness() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 NameAgentReadiness,
		AltStatName:          "inbound_readiness",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(time.Second),
		LoadAssignment:       assignment(NameAgentReadiness, pipeAddress(PipeAgent, 0)),
	}
}

// OutboundPassthrough leads to wherever the application of p wanted to go. It is nil without transparentProxying.
func OutboundPassthrough(p *meshview.Proxy) *clusterv3.Cluster {
	if p.Dataplane.Spec.Networking.TransparentProxying == nil {
		return nil
	}
	c := passthrough(NameOutboundPassthrough, "outbound_passthrough")
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: tcpKeepalive()}
	return c
}

func passthrough(name, stat string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          stat,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      unlimited(),
	}
}
