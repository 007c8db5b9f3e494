package generator

import (
	"cmp"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// OutboundListeners returns the outbound listeners that are p's own: one for each outbound, and with transparentProxying
// the capture listeners.
func OutboundListeners(m *meshview.Mesh, p *meshview.Proxy) []*listenerv3.Listener {
	return outboundListeners(dynamic, m, p)
}

func outboundListeners(src source, m *meshview.Mesh, p *meshview.Proxy) []*listenerv3.Listener {
	net := &p.Dataplane.Spec.Networking
	bound := net.TransparentProxying == nil
	var listeners []*listenerv3.Listener
	for _, o := range net.Outbound {
		s := serviceOf(m, o.Service()).For(p.Dataplane.Node())
		listeners = append(listeners, outboundListener(src, s, mesh.AddrPort(o.Address, o.Port), bound, p.ID()))
	}
	return append(listeners, outboundCaptureListeners(m, p)...)
}

// ServiceListener returns the listener of an address of the service, see meshview.Service.Listeners, the same for all proxies
// with transparentProxying, of a service that is Local those of one node. A proxy's own outbound on that address has the same name and
// takes precedence.
func ServiceListener(s *meshview.Service, at netip.AddrPort) *listenerv3.Listener {
	return serviceListener(dynamic, s, at)
}

func serviceListener(src source, s *meshview.Service, at netip.AddrPort) *listenerv3.Listener {
	l := outboundListener(src, s, at, false, "")
	if s.Headless {
		l.FilterChains[0].Filters = []*listenerv3.Filter{endpointFilter(s, at)}
	}
	return l
}

// outboundListener returns the listener of a service at an address. caller is the proxy that alone has it, empty for one of all proxies.
func outboundListener(src source, s *meshview.Service, at netip.AddrPort, bound bool, caller string) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:             outboundListenerName(at),
		Address:          socketAddress(at),
		StatPrefix:       outboundStat(s.Name),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		// Connections that others make take no place of the application's own.
		IgnoreGlobalConnLimit: true,
		FilterChains: []*listenerv3.FilterChain{{
			Name:    s.Name,
			Filters: outboundFilters(src, s, caller),
		}},
	}
	if s.Local && s.Protocol.IsHTTP() && len(s.Serving()) == 0 {
		l.FilterChains = append(l.FilterChains, closingChain(at))
	}
	if bound {
		l.EnableReusePort = wrapperspb.Bool(false) // else another Envoy on this port would silently share it
	} else {
		l.BindToPort = wrapperspb.Bool(false)
	}
	return l
}

func outboundFilters(src source, s *meshview.Service, caller string) []*listenerv3.Filter {
	if !s.Protocol.IsHTTP() {
		return outboundTCP(s, caller)
	}
	h := httpProxy(outboundStat(s.Name), s.Name, outbound())
	var filters []*listenerv3.Filter
	if s.Affinity {
		filters = append(filters, nameCaller(cmp.Or(caller, callerAddress)))
	}
	if src == static {
		return append(filters, withRoutes(h, OutboundRoute(s)))
	}
	return append(filters, withRDS(h, s.Name))
}

// closingChain takes all new connections to a port, and closes them: Kubernetes drops what is for a service that is Local and has no
// endpoint on the node, and a 503 would be an answer. It comes beside the chain that serves, which stays as it is, and with it the open
// connections (Envoy: configuration/listeners/lds, in place filter chain update).
func closingChain(at netip.AddrPort) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             "closing",
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(uint32(at.Port()))},
		Filters:          []*listenerv3.Filter{closeConnection()},
	}
}

// endpointFilter forwards to one endpoint of a headless service. Its route is its own, since it selects that endpoint.
func endpointFilter(s *meshview.Service, at netip.AddrPort) *listenerv3.Filter {
	if !s.Protocol.IsHTTP() {
		p := tcpProxy(outboundStat(s.Name), s.Name, 1)
		p.MetadataMatch = selectEndpoint(at)
		return tcpFilter(p)
	}
	return withRoutes(httpProxy(outboundStat(s.Name), s.Name, outbound()), hideUnsent(routeConfiguration(s.Name, anyPath(), &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Name},
		MetadataMatch:    selectEndpoint(at),
		Timeout:          durationpb.New(0),
	})))
}

// serviceOf never returns nil. Connections to a service that is not in the view are accepted and closed, since there is no
// cluster for it.
func serviceOf(m *meshview.Mesh, name string) *meshview.Service {
	if s := m.Services.Get(name); s != nil {
		return s
	}
	return &meshview.Service{Mesh: m.Spec.Name, Name: name, Protocol: mesh.ProtocolTCP}
}
