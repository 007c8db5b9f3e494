package generator

import (
	"net/netip"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	connectionlimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// probeConnections is how many connections a listener for probes may have at once.
	probeConnections = 1024
	// probeHeadersTimeout and probeIdle limit connections that ask nothing. A kubelet asks at once.
	probeHeadersTimeout = 5 * time.Second
	probeIdle           = 10 * time.Second
	// probeStream limits a gRPC call that has no timeout of its own, such as Watch.
	probeStream = time.Hour
	// probeRetryPause is the shortest and longest time until a connection for a gRPC probe is attempted again, probeRetries the most
	// attempts, which is more than any probe waits for.
	probeRetryPause = 100 * time.Millisecond
	probeRetries    = 1 << 20
	// probeStreams is how many gRPC calls one connection may have at once.
	probeStreams = 100
	// pathHealth is the prefix of the methods of gRPC health checking.
	pathHealth = "/grpc.health.v1.Health/"
)

// probeListeners returns the listeners for probes in mesh.ProbesPerPort mode. They have no mTLS, and pass nothing but probes. A TCP
// probe has none: Envoy accepts before it knows whether the application would. They have no traffic direction, since a drain of the inbound
// listeners must not stop probes.
func probeListeners(d *mesh.Dataplane) []*listenerv3.Listener {
	if d.ProbesMode != mesh.ProbesPerPort {
		return nil
	}
	address := d.Spec.Networking.Address
	var listeners []*listenerv3.Listener
	if p := d.Spec.Probes; p != nil && len(p.Endpoints) > 0 {
		listeners = append(listeners, probeListener(mesh.AddrPort(address, p.Port), httpProbes(d)))
	}
	for _, p := range d.Spec.TCPProbes {
		at := mesh.AddrPort(address, p.Port)
		switch p.Protocol {
		case mesh.ProtocolGRPC:
			listeners = append(listeners, probeListener(at, grpcProbes(d, p)))
		case "": // the agent has the port, and hands over connections on which a client speaks
			l := probeListener(at, grpcProbes(d, p))
			socket := mesh.SocketGRPCProbe(p.Port)
			l.Address, l.EnableReusePort, l.TcpKeepalive = pipeAddress(socket, pipeModePrivate), nil, nil
			l.Name = probeSocketName(socket) // another one than that of the port: Envoy refuses to move a listener to a socket, and back
			l.FilterChains[0].Name = l.GetName()
			listeners = append(listeners, l)
		}
	}
	return listeners
}

func probeListener(at netip.AddrPort, h *hcmv3.HttpConnectionManager) *listenerv3.Listener {
	name := probeListenerName(at)
	h.StatPrefix = probeStat(uint32(at.Port()))
	return answersAlways(&listenerv3.Listener{
		Name:            name,
		Address:         socketAddress(at),
		StatPrefix:      h.GetStatPrefix(),
		TcpKeepalive:    tcpKeepalive(),
		EnableReusePort: wrapperspb.Bool(false), // as for inbounds
		FilterChains: []*listenerv3.FilterChain{{
			Name: name,
			Filters: []*listenerv3.Filter{
				filter("envoy.filters.network.connection_limit", &connectionlimitv3.ConnectionLimit{
					StatPrefix:     h.GetStatPrefix(),
					MaxConnections: wrapperspb.UInt64(probeConnections),
				}),
				filter("envoy.filters.network.http_connection_manager", h),
			},
		}},
	})
}

// probeProxy returns a connection manager that accepts one version of HTTP.
func probeProxy(codec hcmv3.HttpConnectionManager_CodecType, routes []*routev3.Route) *hcmv3.HttpConnectionManager {
	h := serverProxy("", "")
	h.CodecType, h.UpgradeConfigs = codec, nil
	h.CommonHttpProtocolOptions.IdleTimeout = durationpb.New(probeIdle)
	h.RequestHeadersTimeout = durationpb.New(probeHeadersTimeout)
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		Name:         nameProbes,
		VirtualHosts: []*routev3.VirtualHost{{Name: nameProbes, Domains: []string{"*"}, Routes: routes}},
	}}
	return h
}

// httpProbes passes GET requests for exact paths to the agent, which asks the application as the kubelet would, for as long as the kubelet
// would. All other requests have no route: 404.
func httpProbes(d *mesh.Dataplane) *hcmv3.HttpConnectionManager {
	var routes []*routev3.Route
	for _, e := range d.Spec.Probes.Endpoints {
		r := &routev3.Route{
			Match: &routev3.RouteMatch{
				PathSpecifier: &routev3.RouteMatch_Path{Path: e.Path},
				Headers: []*routev3.HeaderMatcher{{
					Name: ":method",
					HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
						MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "GET"},
					}},
				}},
			},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameAgentProbes},
				Timeout:          durationpb.New(0),
			}},
		}
		if !d.IsPod() { // its agent has no probe table
			r.GetRoute().HostRewriteSpecifier = askedHost(d, e.InboundPort)
			r.RequestHeadersToAdd = []*corev3.HeaderValueOption{{
				Header:       &corev3.HeaderValue{Key: mesh.ProbeTargetHeader, Value: literal(d.Application(e.InboundPort).String() + e.InboundPath)},
				AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
			}}
		}
		routes = append(routes, r)
	}
	h := probeProxy(hcmv3.HttpConnectionManager_HTTP1, routes)
	// The kubelet keeps connections of hooks, and must not send one on a connection that is just being closed.
	h.CommonHttpProtocolOptions.MaxRequestsPerConnection = wrapperspb.UInt32(1)
	return h
}

// askedHost has the application asked by the host that the kubelet would have used without the mesh.
func askedHost(d *mesh.Dataplane, port uint32) *routev3.RouteAction_HostRewriteLiteral {
	return &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: mesh.JoinHostPort(d.Spec.Networking.Address, port)}
}

// literal escapes what Envoy would replace in the value of a header that it adds
// (Envoy: configuration/http/http_conn_man/headers, custom request/response headers).
func literal(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// grpcProbes passes calls of gRPC health checking to the application. While nothing listens there, or it refuses the stream or goes away
// before it, this goes on to try until the call is over, as the kubelet's client does.
func grpcProbes(d *mesh.Dataplane, p mesh.TCPProbe) *hcmv3.HttpConnectionManager {
	h := probeProxy(hcmv3.HttpConnectionManager_HTTP2, []*routev3.Route{{
		Match:                  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: pathHealth}},
		RequestHeadersToRemove: []string{"x-forwarded-proto"}, // which Envoy adds
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier:     &routev3.RouteAction_Cluster{Cluster: probeClusterName(p.InboundPort)},
			HostRewriteSpecifier: askedHost(d, p.InboundPort),
			Timeout:              durationpb.New(0),
			MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
				MaxStreamDuration: durationpb.New(probeStream), GrpcTimeoutHeaderMax: durationpb.New(0), // the call's own timeout
			},
			RetryPolicy: &routev3.RetryPolicy{
				RetryOn:    "connect-failure,refused-stream",
				NumRetries: wrapperspb.UInt32(probeRetries),
				RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
					BaseInterval: durationpb.New(probeRetryPause), MaxInterval: durationpb.New(probeRetryPause),
				},
			},
		}},
	}})
	h.Http2ProtocolOptions.MaxConcurrentStreams = wrapperspb.UInt32(probeStreams)
	return h
}

// probeClusters returns the clusters of probeListeners: the agent, and the application behind each port that is asked by gRPC.
func probeClusters(d *mesh.Dataplane) []*clusterv3.Cluster {
	if d.ProbesMode != mesh.ProbesPerPort {
		return nil
	}
	var clusters []*clusterv3.Cluster
	if p := d.Spec.Probes; p != nil && len(p.Endpoints) > 0 {
		clusters = append(clusters, agentProbesCluster())
	}
	made := map[uint32]bool{}
	for _, p := range d.Spec.TCPProbes {
		if p.Protocol == mesh.ProtocolTCP || made[p.InboundPort] {
			continue
		}
		made[p.InboundPort] = true
		clusters = append(clusters, probeCluster(d, p.InboundPort))
	}
	return clusters
}

// agentProbesCluster is the agent's handler. Each request has a connection of its own, since each answer ends it.
func agentProbesCluster() *clusterv3.Cluster {
	o := explicitHTTP1()
	o.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)}
	return &clusterv3.Cluster{
		Name:                 nameAgentProbes,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      noCircuitBreakers(),
		LoadAssignment:       assignment(nameAgentProbes, lbEndpoint(pipeAddress(mesh.SocketProbes, 0), nil)),

		TypedExtensionProtocolOptions: httpOptions(o),
	}
}

func probeCluster(d *mesh.Dataplane, port uint32) *clusterv3.Cluster {
	name := probeClusterName(port)
	o := explicitHTTP2(toApplication())
	// The kubelet makes a connection for each probe: an older one may have come to its end. One that a call did not wait for has no request.
	o.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1), IdleTimeout: durationpb.New(probeIdle)}
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          probeStat(port),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		CircuitBreakers:      noCircuitBreakers(),
		LoadAssignment:       assignment(name, lbEndpoint(socketAddress(d.Application(port)), nil)),

		TypedExtensionProtocolOptions: httpOptions(o),
	}
	if d.Spec.Networking.TransparentProxying != nil {
		c.UpstreamBindConfig = bypassRedirection()
	}
	return c
}
