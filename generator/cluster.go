package generator

import (
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

const connectTimeout = 5 * time.Second

// OutboundCluster returns the Cluster of a service. It is the same for all clients.
func OutboundCluster(m *meshview.Mesh, s *meshview.Service) *clusterv3.Cluster {
	return outboundCluster(dynamic, m, s)
}

func outboundCluster(src source, m *meshview.Mesh, s *meshview.Service) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:            s.Name,
		ConnectTimeout:  durationpb.New(connectTimeout),
		LbPolicy:        lbPolicy(s),
		CircuitBreakers: noCircuitBreakers(),
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{
			TcpKeepalive: tcpKeepalive(),
		},
		TypedExtensionProtocolOptions: outboundHTTP(s.Protocol),
	}
	if s.Headless {
		c.LbSubsetConfig = subsetByAddress() // and nothing is ejected: no other endpoint could take its place
	} else {
		c.OutlierDetection = outlierDetection()
	}
	if src == static {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.LoadAssignment = LoadAssignment(s)
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsConfigSource()}
	}
	if mutualTLS(m) {
		c.TransportSocketMatches = socketMatches(src, m, s)
	}
	return c
}

// socketMatches selects mTLS for the endpoints whose metadata say so; the others get plain text, the default. The first match
// counts (Envoy: api-v3/config/cluster/v3/cluster.proto, transport_socket_matches).
func socketMatches(src source, m *meshview.Mesh, s *meshview.Service) []*clusterv3.Cluster_TransportSocketMatch {
	mtls := []string{matchMTLS}
	if m.Spec.Mode() == mesh.ModeStrict {
		mtls = append(mtls, matchServerFirst)
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

// outlierDetection ejects endpoints that are dead (no connection, or a gateway's 502, 503, 504), not those that answer
// 500. The panic threshold keeps Envoy's default: assignments have no unready endpoints, so panic can only bring back
// ejected ones, and only if most of the others have left since (Envoy: intro/arch_overview/upstream/outlier,
// intro/arch_overview/upstream/load_balancing/panic_threshold).
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

// noCircuitBreakers lifts Envoy's default limits (1,024 connections, requests and pending requests, 3 concurrent retries),
// which would answer load with 503. Connections are limited for the whole proxy, see Bootstrap
// (Envoy: intro/arch_overview/upstream/circuit_breaking).
func noCircuitBreakers() *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(math.MaxUint32)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit,
		MaxPendingRequests: limit,
		MaxRequests:        limit,
		MaxRetries:         limit,
	}}}
}

// InboundClusters returns the clusters of the application of p, one for each inbound; with transparentProxying also that
// of the agent's readiness and, where passesInbound, that of the ports without an inbound; and those for probes.
func InboundClusters(m *meshview.Mesh, p *meshview.Proxy) []*clusterv3.Cluster {
	net := &p.Dataplane.Spec.Networking
	redirected := net.TransparentProxying != nil
	var clusters []*clusterv3.Cluster
	for in := range net.ActiveInbounds() {
		clusters = append(clusters, inboundCluster(p.Dataplane, in))
	}
	if redirected {
		clusters = append(clusters, agentReadinessCluster())
		if passesInbound(m.Spec.Mode(), p.Dataplane) {
			c := passthroughCluster(nameInboundPassthrough, mesh.InboundStats+"passthrough")
			c.UpstreamBindConfig = bypassRedirection()
			clusters = append(clusters, c)
		}
	}
	for _, c := range clusters {
		c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(inboundBuffer)
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
		CircuitBreakers:      noCircuitBreakers(),
		LoadAssignment:       assignment(name, inboundEndpoint(d, in)),

		TypedExtensionProtocolOptions: inboundHTTP(in.AppProtocol()),
	}
	if d.Spec.Networking.TransparentProxying != nil {
		c.UpstreamBindConfig = bypassRedirection()
	}
	return c
}

// inboundEndpoint is the application behind an inbound. What differs between replicas is here, and in no larger resource.
func inboundEndpoint(d *mesh.Dataplane, in *mesh.Inbound) *endpointv3.LbEndpoint {
	e := lbEndpoint(socketAddress(mesh.AddrPort(in.ServiceAddress, in.ServicePort)), nil)
	if in.AppProtocol().IsHTTP() {
		e.GetEndpoint().Hostname = d.InboundAddress(in).String() // see inboundRoute
	}
	return e
}

func agentReadinessCluster() *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 nameAgentReadiness,
		AltStatName:          mesh.InboundStats + "readiness",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(time.Second),
		LoadAssignment:       assignment(nameAgentReadiness, lbEndpoint(pipeAddress(mesh.SocketAgent, 0), nil)),
	}
}

// OutboundPassthrough returns the cluster of connections to destinations outside the mesh, nil without
// transparentProxying, and where the mesh does not let them through.
func OutboundPassthrough(m *meshview.Mesh, p *meshview.Proxy) *clusterv3.Cluster {
	if p.Dataplane.Spec.Networking.TransparentProxying == nil || !m.Spec.Passthrough() {
		return nil
	}
	c := passthroughCluster(nameOutboundPassthrough, "outbound_passthrough")
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: tcpKeepalive()}
	return c
}

// passthroughCluster connects to where the kernel says that a redirected connection was going
// (Envoy: intro/arch_overview/upstream/service_discovery, original destination).
func passthroughCluster(name, stat string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          stat,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      noCircuitBreakers(),
	}
}
