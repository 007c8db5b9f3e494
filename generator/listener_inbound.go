package generator

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsinspectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

const (
	// inspectTimeout is how long a PERMISSIVE port waits for the client's first bytes before it treats the connection as
	// plaintext of a server-first protocol. An HTTP port waits as long as a handshake may take: its client always sends
	// first, and a busy Envoy may read these bytes late.
	inspectTimeout = time.Second
	// handshakeTimeout is the maximum duration of a client's TLS handshake. It starts when Envoy accepts the connection:
	// in a burst, the last connections wait for the processor. A client gives up by itself after connectTimeout.
	handshakeTimeout = 10 * time.Second
)

// InboundListeners returns the listeners through which other proxies reach p's application: one for each inbound, or
// with transparentProxying the capture listeners; and the readiness listener. trustDomain is the suffix of all trust
// domains. records means that the agent reads records of traffic that STRICT would refuse.
func InboundListeners(m *meshview.Mesh, p *meshview.Proxy, trustDomain string, records bool) []*listenerv3.Listener {
	b := newInbound(dynamic, m, p, trustDomain)
	b.records = records && b.mode == mesh.ModePermissive
	return b.listeners()
}

// inbound builds the inbound listeners of one proxy.
type inbound struct {
	src       source
	mode      mesh.MTLSMode
	dataplane *mesh.Dataplane
	// socket is the transport socket of mTLS, or nil if mTLS is off.
	socket *corev3.TransportSocket
	// records means that traffic that STRICT would refuse is recorded. A static configuration has no agent to read the
	// records.
	records bool
}

func newInbound(src source, m *meshview.Mesh, p *meshview.Proxy, trustDomain string) *inbound {
	b := &inbound{src: src, mode: m.Spec.Mode(), dataplane: p.Dataplane}
	if b.mode != "" {
		b.socket = serverSocket(src, mesh.TrustDomain(p.Dataplane.Mesh, trustDomain))
	}
	return b
}

func (b *inbound) listeners() []*listenerv3.Listener {
	net := &b.dataplane.Spec.Networking
	var listeners []*listenerv3.Listener
	if net.TransparentProxying != nil {
		listeners = b.captureListeners(net.TransparentProxying)
	} else {
		for in := range net.ActiveInbounds() {
			listeners = append(listeners, b.listener(in))
		}
	}
	listeners = append(listeners, readinessListener())
	for _, l := range listeners {
		l.PerConnectionBufferLimitBytes = wrapperspb.UInt32(clientBuffer)
	}
	return listeners
}

// listener returns the listener of one inbound, on its own address and port.
func (b *inbound) listener(in *mesh.Inbound) *listenerv3.Listener {
	at := b.dataplane.InboundAddress(in)
	l := &listenerv3.Listener{
		Name:             inboundListenerName(at),
		Address:          socketAddress(at),
		StatPrefix:       inboundStat(in),
		TrafficDirection: corev3.TrafficDirection_INBOUND,
		TcpKeepalive:     tcpKeepalive(),
		EnableReusePort:  wrapperspb.Bool(false), // otherwise another Envoy would silently share this port
		FilterChains:     b.chains(in, nil),
	}
	if b.needsInspector(in) {
		inspectTLS(l, nil)
		if in.AppProtocol().IsHTTP() {
			l.ListenerFiltersTimeout = durationpb.New(handshakeTimeout)
		}
	}
	return l
}

// needsInspector reports whether the filter chain of an inbound depends on the client's first bytes.
func (b *inbound) needsInspector(in *mesh.Inbound) bool {
	return b.mode == mesh.ModePermissive && !in.ServerFirst
}

// chains returns the filter chains of one inbound; match selects its connections, nil selects all.
func (b *inbound) chains(in *mesh.Inbound, match *listenerv3.FilterChainMatch) []*listenerv3.FilterChain {
	switch {
	case b.mode == mesh.ModeStrict:
		return []*listenerv3.FilterChain{b.chain(in, match, b.socket)}
	case b.needsInspector(in):
		return []*listenerv3.FilterChain{b.chain(in, meshTLS(match), b.socket), b.applicationTLSChain(in, match),
			b.chain(in, match, nil)}
	default:
		return []*listenerv3.FilterChain{b.chain(in, match, nil)}
	}
}

// applicationTLSChain passes the application's own TLS through. It needs a separate chain: once a chain matches a
// transport protocol, Envoy only considers chains that match it (Envoy:
// api-v3/config/listener/v3/listener_components.proto, FilterChainMatch).
func (b *inbound) applicationTLSChain(in *mesh.Inbound, match *listenerv3.FilterChainMatch) *listenerv3.FilterChain {
	cluster := inboundClusterName(b.dataplane, in)
	own := meshTLS(match)
	own.ApplicationProtocols = nil
	p := tcpProxy(inboundStat(in), cluster, 1)
	b.recordConnections(p, mesh.RecordsTLS, in)
	return &listenerv3.FilterChain{
		Name:             cluster + ":tls",
		FilterChainMatch: own,
		Filters:          []*listenerv3.Filter{tcpFilter(p)},
	}
}

func (b *inbound) chain(
	in *mesh.Inbound, match *listenerv3.FilterChainMatch, socket *corev3.TransportSocket,
) *listenerv3.FilterChain {
	c := &listenerv3.FilterChain{
		Name:             inboundClusterName(b.dataplane, in) + ":plain",
		FilterChainMatch: match,
		Filters:          []*listenerv3.Filter{b.filter(in, socket != nil)},
	}
	if socket != nil {
		c.Name = inboundClusterName(b.dataplane, in) + ":mtls"
		c.TransportSocket = socket
		c.TransportSocketConnectTimeout = durationpb.New(handshakeTimeout)
	}
	return c
}

func (b *inbound) filter(in *mesh.Inbound, tls bool) *listenerv3.Filter {
	cluster := inboundClusterName(b.dataplane, in)
	if !in.AppProtocol().IsHTTP() {
		p := tcpProxy(inboundStat(in), cluster, 1)
		if tls {
			p = connectAfterHandshake(p)
		} else {
			b.recordConnections(p, mesh.RecordsConnections, in)
		}
		return tcpFilter(p)
	}
	h := serverProxy(inboundStat(in), noHost)
	h.StreamIdleTimeout = durationpb.New(maxIdleStream)
	h.LocalReplyConfig = markUnsent()
	if tls {
		// The application gets the client's SPIFFE ID in x-forwarded-client-cert, which clients cannot set themselves
		// (Envoy: configuration/http/http_conn_man/headers, x-forwarded-client-cert).
		h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_SANITIZE_SET
		h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{Uri: true}
	} else {
		b.recordRequests(h, in)
	}
	// Envoy holds no request of a client in the mesh, since the client sends requests marked as unsent to another
	// endpoint.
	return withRoutes(h, inboundRoute(cluster, !tls && b.mode != ""))
}

// meshTLS narrows match to clients that offer the mesh's own ALPN.
func meshTLS(match *listenerv3.FilterChainMatch) *listenerv3.FilterChainMatch {
	return &listenerv3.FilterChainMatch{
		DestinationPort:      match.GetDestinationPort(),
		PrefixRanges:         match.GetPrefixRanges(),
		TransportProtocol:    "tls",
		ApplicationProtocols: []string{alpnMesh},
	}
}

// inspectTLS adds the TLS inspector, which waits for the client's first bytes. After inspectTimeout a connection
// continues as plaintext. disabled matches the connections that it does not wait for; nil matches none (Envoy:
// configuration/listeners/listener_filters/tls_inspector).
func inspectTLS(l *listenerv3.Listener, disabled *listenerv3.ListenerFilterChainMatchPredicate) {
	f := listenerFilter("envoy.filters.listener.tls_inspector", &tlsinspectorv3.TlsInspector{})
	f.FilterDisabled = disabled
	l.ListenerFilters = append(l.ListenerFilters, f)
	l.ListenerFiltersTimeout = durationpb.New(inspectTimeout)
	l.ContinueOnListenerFiltersTimeout = true
}
