package generator

import (
	"net/netip"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// family is an IP family. Each has its own capture listener, so that IPv4 works on a host without IPv6.
type family struct {
	suffix string
	any    netip.Addr
}

func families() []family {
	return []family{{suffix: "", any: netip.IPv4Unspecified()}, {suffix: "6", any: netip.IPv6Unspecified()}}
}

// captureListeners returns the listeners to which the kernel redirects incoming connections.
func (b *inbound) captureListeners(tp *mesh.TransparentProxying) []*listenerv3.Listener {
	var listeners []*listenerv3.Listener
	for _, f := range families() {
		l := &listenerv3.Listener{
			Name:             nameInboundCapture + f.suffix,
			Address:          tcpAddress(f.any.String(), tp.RedirectPortInbound),
			StatPrefix:       mesh.InboundStats + "capture" + f.suffix,
			TrafficDirection: corev3.TrafficDirection_INBOUND,
			TcpKeepalive:     tcpKeepalive(),
			ListenerFilters:  []*listenerv3.ListenerFilter{originalDst()},
			FilterChains:     append(loopChains(tp), readinessChain()),
		}
		b.addInboundChains(l)
		if passesInbound(b.mode, b.dataplane) {
			p := tcpProxy(mesh.InboundStats+"passthrough", nameInboundPassthrough, 1)
			if b.dataplane.Spec.Networking.Gateway == nil { // a gateway has the same chain in mode STRICT
				b.recordConnections(p, mesh.RecordsNoInbound, nil)
			}
			l.DefaultFilterChain = &listenerv3.FilterChain{Name: "passthrough", Filters: []*listenerv3.Filter{tcpFilter(p)}}
		}
		listeners = append(listeners, l)
	}
	return listeners
}

// passesInbound reports whether redirected connections to ports without an inbound reach the application. In STRICT
// mode only a gateway allows this, since it accepts connections from outside the mesh.
func passesInbound(mode mesh.MTLSMode, d *mesh.Dataplane) bool {
	return mode != mesh.ModeStrict || d.Spec.Networking.Gateway != nil
}

// addInboundChains adds the chains of each inbound. They match the port of the original destination. Adding or removing
// an inbound changes only filter chains, so Envoy updates the listener in place, and connections of other chains
// survive. Any other difference would drain the whole listener (Envoy: configuration/listeners/lds). So the TLS
// inspector stays enabled for ports without an inbound, although it delays server-first protocols there; only
// serverFirst disables it.
func (b *inbound) addInboundChains(l *listenerv3.Listener) {
	net := &b.dataplane.Spec.Networking
	onPort := map[uint32]int{}
	for in := range net.ActiveInbounds() {
		onPort[in.Port]++
	}
	var serverFirst []*predicate
	for in := range net.ActiveInbounds() {
		match := &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(in.Port)}
		if onPort[in.Port] > 1 {
			match.PrefixRanges = singleAddress(b.dataplane.InboundAddress(in).Addr())
		}
		l.FilterChains = append(l.FilterChains, b.chains(in, match)...)
		if in.ServerFirst {
			serverFirst = append(serverFirst, destinationPort(in.Port))
		}
	}
	if b.mode == mesh.ModePermissive {
		inspectTLS(l, anyOf(serverFirst))
	}
}

// loopChains returns chains that close connections to the capture ports themselves, which passthrough would otherwise
// send to the capture ports again and again.
func loopChains(tp *mesh.TransparentProxying) []*listenerv3.FilterChain {
	var chains []*listenerv3.FilterChain
	for _, port := range []uint32{tp.RedirectPortInbound, tp.RedirectPortOutbound} {
		chains = append(chains, &listenerv3.FilterChain{
			Name:             "loop:" + strconv.FormatUint(uint64(port), 10),
			FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(port)},
			Filters:          []*listenerv3.Filter{closeConnection()},
		})
	}
	return chains
}

// readinessChain forwards to the agent's readiness from a port on which nothing listens, so that a response also proves
// that redirection works. A dead agent restarts within a fraction of a second; until then the request is retried.
func readinessChain() *listenerv3.FilterChain {
	path := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: mesh.PathReady}}
	return &listenerv3.FilterChain{
		Name:             nameReadiness,
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(mesh.PortReadiness)},
		Filters: []*listenerv3.Filter{withRoutes(serverProxy(mesh.InboundStats+"readiness", ""),
			routeConfiguration(nameReadiness, &routev3.RouteAction{
				ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameAgentReadiness},
				Timeout:          durationpb.New(readinessTimeout),
				RetryPolicy: &routev3.RetryPolicy{
					RetryOn: "connect-failure,reset", NumRetries: wrapperspb.UInt32(readinessRetries),
					RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
						BaseInterval: durationpb.New(readinessPause), MaxInterval: durationpb.New(readinessPause),
					},
				},
			}, path))},
	}
}

const (
	// readinessTimeout is shorter than the timeout of the kubelet's probe, so that the kubelet sees the reason.
	readinessTimeout = 2 * time.Second
	// readinessPause is the longest pause between two of readinessRetries; Envoy waits half of it on average.
	readinessPause   = 200 * time.Millisecond
	readinessRetries = 15
)

// outboundCaptureListeners returns the listeners to which the kernel redirects the application's connections. They hand
// a connection over to the listener of its original destination, if there is one; otherwise the mesh decides between
// passthrough and closing (Envoy: api-v3/config/listener/v3/listener.proto, use_original_dst).
func outboundCaptureListeners(m *meshview.Mesh, p *meshview.Proxy) []*listenerv3.Listener {
	tp := p.Dataplane.Spec.Networking.TransparentProxying
	if tp == nil {
		return nil
	}
	rest := &listenerv3.FilterChain{
		Name:    "passthrough",
		Filters: []*listenerv3.Filter{tcpFilter(tcpProxy("outbound_passthrough", nameOutboundPassthrough, 1))},
	}
	if !m.Spec.Passthrough() {
		rest = &listenerv3.FilterChain{Name: "closed", Filters: []*listenerv3.Filter{closeConnection()}}
	}
	var listeners []*listenerv3.Listener
	for _, f := range families() {
		listeners = append(listeners, &listenerv3.Listener{
			Name:       nameOutboundCapture + f.suffix,
			Address:    tcpAddress(f.any.String(), tp.RedirectPortOutbound),
			StatPrefix: "outbound_capture" + f.suffix,

			IgnoreGlobalConnLimit: true, // as in outboundListener
			TrafficDirection:      corev3.TrafficDirection_OUTBOUND,
			UseOriginalDst:        wrapperspb.Bool(true),
			FilterChains:          loopChains(tp),

			DefaultFilterChain: rest,
		})
	}
	return listeners
}

// originalDst makes filter chains match the destination before redirection
// (Envoy: configuration/listeners/listener_filters/original_dst_filter).
func originalDst() *listenerv3.ListenerFilter {
	return listenerFilter("envoy.filters.listener.original_dst", &originaldstv3.OriginalDst{})
}

func listenerFilter(name string, config proto.Message) *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name:       name,
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: resource.Any(config)},
	}
}

func singleAddress(a netip.Addr) []*corev3.CidrRange {
	return []*corev3.CidrRange{{AddressPrefix: a.String(), PrefixLen: wrapperspb.UInt32(uint32(a.BitLen()))}}
}
