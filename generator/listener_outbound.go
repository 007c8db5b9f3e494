package generator

import (
	"cmp"
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// OutboundListeners returns the outbound listeners that belong to p alone: one for each outbound, and with
// transparentProxying the capture listeners.
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

// ServiceListener returns the listener of an address of the service, see meshview.Service.Listeners. All proxies with
// transparentProxying share it; for a Local service, the proxies of one node share it. A proxy's own outbound on the
// same address has the same name and takes precedence.
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

// outboundListener returns the listener of a service at an address. caller is the only proxy that uses this listener,
// or empty if all proxies share it.
func outboundListener(
	src source, s *meshview.Service, at netip.AddrPort, bound bool, caller string,
) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:             outboundListenerName(at),
		Address:          socketAddress(at),
		StatPrefix:       outboundStat(s.Name),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		// Connections from other proxies must not use up the limit for the application's own.
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
		l.EnableReusePort = wrapperspb.Bool(false) // otherwise another Envoy would silently share this port
	} else {
		l.BindToPort = wrapperspb.Bool(false)
	}
	return l
}

func outboundFilters(src source, s *meshview.Service, caller string) []*listenerv3.Filter {
	if !s.Protocol.IsHTTP() {
		return outboundTCP(s, caller)
	}
	h := clientProxy(s)
	var filters []*listenerv3.Filter
	if s.Affinity {
		filters = append(filters, nameCaller(cmp.Or(caller, callerAddress)))
	}
	if src == static {
		return append(filters, withRoutes(h, OutboundRoute(s)))
	}
	return append(filters, withRDS(h, s.Name))
}

// clientProxy returns the connection manager of requests to a service.
func clientProxy(s *meshview.Service) *hcmv3.HttpConnectionManager {
	h := httpProxy(outboundStat(s.Name), s.Name, outbound())
	if s.Protocol == mesh.ProtocolHTTP {
		h.HttpFilters = append([]*hcmv3.HttpFilter{offerHTTP2()}, h.HttpFilters...)
	}
	return h
}

// closingChain accepts all new connections to a port and closes them. Kubernetes drops connections to a Local service
// without an endpoint on the node, whereas a 503 would be a response. The chain is added beside the serving chain,
// which stays unchanged, so its open connections survive (Envoy: configuration/listeners/lds, in place filter chain
// update).
func closingChain(at netip.AddrPort) *listenerv3.FilterChain {
	return &listenerv3.FilterChain{
		Name:             "closing",
		FilterChainMatch: &listenerv3.FilterChainMatch{DestinationPort: wrapperspb.UInt32(uint32(at.Port()))},
		Filters:          []*listenerv3.Filter{closeConnection()},
	}
}

// endpointFilter forwards to one endpoint of a headless service. It has its own route, which selects the endpoint.
func endpointFilter(s *meshview.Service, at netip.AddrPort) *listenerv3.Filter {
	if !s.Protocol.IsHTTP() {
		p := tcpProxy(outboundStat(s.Name), s.Name, 1)
		p.MetadataMatch = selectEndpoint(at)
		return tcpFilter(p)
	}
	return withRoutes(clientProxy(s), hideUnsent(routeConfiguration(s.Name, &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Name},
		MetadataMatch:    selectEndpoint(at),
		Timeout:          durationpb.New(0),
	}, anyRequest()...)))
}

// serviceOf never returns nil. Connections to a service that is not in the view are accepted and closed, since the
// service has no cluster.
func serviceOf(m *meshview.Mesh, name string) *meshview.Service {
	if s := m.Services.Get(name); s != nil {
		return s
	}
	return &meshview.Service{Mesh: m.Spec.Name, Name: name, Protocol: mesh.ProtocolTCP}
}
