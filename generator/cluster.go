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

// OutboundCluster returns the Cluster of a service, which is the same for all clients.
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
		c.LbSubsetConfig = subsetByAddress() // no outlier detection: no other endpoint could replace an ejected one
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

// socketMatches selects mTLS for endpoints whose metadata requires it; other endpoints get plaintext, the default. The
// first match applies (Envoy: api-v3/config/cluster/v3/cluster.proto, transport_socket_matches).
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

// outlierDetection ejects dead endpoints (no connection, or a gateway's 502, 503, 504), but not endpoints that respond
// with 500. It keeps Envoy's default panic threshold: assignments contain no unready endpoints, so panic can only bring
// back ejected ones, and only if most of the others have left since (Envoy: intro/arch_overview/upstream/outlier,
// intro/arch_overview/upstream/load_balancing/panic_threshold).
func outlierDetection() *clusterv3.OutlierDetection {
	on, off := wrapperspb.UInt32(100), wrapperspb.UInt32(0)
	return &clusterv3.OutlierDetection{
		Interval:                       durationpb.New(2 * time.Second),
		BaseEjectionTime:               durationpb.New(10 * time.Second),
		MaxEjectionTime:                durationpb.New(10 * time.Second), // by default each one lasts longer
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

// noCircuitBreakers lifts Envoy's default limits (1,024 connections, requests and pending requests, 3 concurrent
// retries), with which Envoy would respond to load with 503. Bootstrap limits connections for the whole proxy (Envoy:
// intro/arch_overview/upstream/circuit_breaking).
func noCircuitBreakers() *clusterv3.CircuitBreakers {
	limit := wrapperspb.UInt32(math.MaxUint32)
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     limit,
		MaxPendingRequests: limit,
		MaxRequests:        limit,
		MaxRetries:         limit,
	}}}
}

// InboundClusters returns the clusters of p's application, one for each inbound, and clusters for probes. With
// transparentProxying it adds a cluster for the agent's readiness and, if passesInbound, one for ports without an
// inbound.
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
		c.PerConnectionBufferLimitBytes = wrapperspb.UInt32(applicationBuffer)
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

// inboundEndpoint is the application behind an inbound. Differences between replicas are in this endpoint, and in no
// larger resource. An application may listen on only one of the pod's addresses: if the first address refuses, Envoy
// connects to the second one (Envoy: intro/arch_overview/upstream/connection_pooling, happy eyeballs).
func inboundEndpoint(d *mesh.Dataplane, in *mesh.Inbound) *endpointv3.LbEndpoint {
	e := lbEndpoint(socketAddress(mesh.AddrPort(in.ServiceAddress, in.ServicePort)), nil)
	if in.AppProtocol().IsHTTP() {
		e.GetEndpoint().Hostname = d.InboundAddress(in).String() // see inboundRoute
	}
	if d.SecondAddress != "" && in.ServiceAddress == d.Spec.Networking.Address {
		e.GetEndpoint().AdditionalAddresses = []*endpointv3.Endpoint_AdditionalAddress{{
			Address: socketAddress(mesh.AddrPort(d.SecondAddress, in.ServicePort)),
		}}
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

// OutboundPassthrough returns the cluster of connections to destinations outside the mesh. It is nil without
// transparentProxying, and if the mesh forbids passthrough.
func OutboundPassthrough(m *meshview.Mesh, p *meshview.Proxy) *clusterv3.Cluster {
	if p.Dataplane.Spec.Networking.TransparentProxying == nil || !m.Spec.Passthrough() {
		return nil
	}
	c := passthroughCluster(nameOutboundPassthrough, "outbound_passthrough")
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: tcpKeepalive()}
	return c
}

// passthroughCluster connects to the original destination of a redirected connection, which the kernel reports (Envoy:
// intro/arch_overview/upstream/service_discovery, original destination).
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
