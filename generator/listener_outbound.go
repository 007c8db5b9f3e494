package generator

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// OutboundListeners are p's own: one for each outbound, and with transparentProxying those that redirection leads to.
func OutboundListeners(m *meshview.Mesh, p *meshview.Proxy) []*listenerv3.Listener {
	return outboundListeners(fromServer, m, p)
}

func outboundListeners(src source, m *meshview.Mesh, p *meshview.Proxy) []*listenerv3.Listener {
	net := &p.Dataplane.Spec.Networking
	bound := net.TransparentProxying == nil
	var listeners []*listenerv3.Listener
	for _, o := range net.Outbound {
		listeners = append(listeners, outboundListener(src, serviceOf(m, o.Tags.Service()), addrPort(o.Address, o.Port), bound))
	}
	return append(listeners, outboundCaptures(p)...)
}

// ServiceListener takes connections to a virtual address of the service, for all proxies with transparentProxying. It
// holds nothing of one proxy. An outbound of a proxy's own on the same address has the same name, and goes first.
func ServiceListener(s *meshview.Service, at netip.AddrPort) *listenerv3.Listener {
	return outboundListener(fromServer, s, at, false)
}

func outboundListener(src source, s *meshview.Service, at netip.AddrPort, bound bool) *listenerv3.Listener {
	l := &listenerv3.Listener{
		Name:             OutboundListenerName(at),
		Address:          socketAddress(at),
		StatPrefix:       outboundStat(s.Name),
		TrafficDirection: corev3.TrafficDirection_OUTBOUND,
		FilterChains: []*listenerv3.FilterChain{{
			Name:    s.Name,
			Filters: []*listenerv3.Filter{outboundFilter(src, s)},
		}},
	}
	if bound {
		l.EnableReusePort = wrapperspb.Bool(false) // else another Envoy on this port would share it, silently
	} else {
		l.BindToPort = wrapperspb.Bool(false)
	}
	return l
}

func outboundFilter(src source, s *meshview.Service) *listenerv3.Filter {
	if !s.Protocol.IsHTTP() {
		return tcpFilter(tcpProxy(outboundStat(s.Name), s.Name, connectAttempts))
	}
	h := httpProxy(outboundStat(s.Name), s.Name)
	if src == inline {
		return withRoutes(h, OutboundRoute(s))
	}
	return withRDS(h, s.Name)
}

// serviceOf never returns nil: connections to a service that the view lacks are accepted and closed, for want of its
// cluster.
func serviceOf(m *meshview.Mesh, name string) *meshview.Service {
	if s := m.Services[name]; s != nil {
		return s
	}
	return &meshview.Service{Mesh: m.Spec.Name, Name: name, Protocol: mesh.ProtocolTCP}
}
