package mesh

import "net/netip"

// Dataplane is one proxy and the application beside it.
type Dataplane struct {
	Meta
	Spec DataplaneSpec `json:"spec"`
	// Identity is set by sources that know more than a manifest, such as Kubernetes.
	Identity Identity `json:"-"`
	// ProbesMode is set by its source, before the defaults; the label AnnotationVirtualProbesMode takes precedence. Only
	// with ProbesPerPort do Spec.Probes and Spec.TCPProbes have an effect.
	ProbesMode ProbesMode `json:"-"`
	// SecondAddress is set by sources that know the proxy's pod: its address of the other IP family than
	// Networking.Address, empty for none.
	SecondAddress string `json:"-"`
	// Drain is set by sources that know the proxy's pod and node. Nil means that it may get new traffic.
	Drain *Drain `json:"-"`
}

// Identity is the SPIFFE path in a proxy's certificate, as known by its source.
type Identity struct {
	// Path of the SPIFFE ID, such as /ns/shop/sa/web. Default: see SPIFFEPath.
	Path string
	// Instance distinguishes a proxy from an earlier one with the same name: the pod's UID. Empty if unknown.
	Instance string
}

// DataplaneSpec is the spec of a Dataplane.
type DataplaneSpec struct {
	Networking Networking `json:"networking"`
	// Probes is deprecated and will be removed in Sonde 2.0. It only has an effect in the per-port mode.
	Probes *Probes `json:"probes,omitempty"`
	// TCPProbes is deprecated and will be removed in Sonde 2.0. It only has an effect in the per-port mode.
	// +kubebuilder:validation:MaxItems=1000
	TCPProbes []TCPProbe `json:"tcpProbes,omitempty"`
}

// Networking has the addresses and ports of a proxy.
type Networking struct {
	// Address is the IP address under which other proxies reach this one.
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address"`
	// Gateway marks a Dataplane whose application accepts traffic from outside the mesh itself. The Dataplane then has
	// no inbound.
	Gateway *Gateway `json:"gateway,omitempty"`
	// Inbound is one port at which the mesh reaches the application.
	// +kubebuilder:validation:MaxItems=1000
	Inbound []Inbound `json:"inbound,omitempty"`
	// Outbound is a local port at which the application reaches a service.
	// +kubebuilder:validation:MaxItems=5000
	Outbound            []Outbound           `json:"outbound,omitempty"`
	TransparentProxying *TransparentProxying `json:"transparentProxying,omitempty"`
}

// TransparentProxying is set if the kernel redirects the application's connections to the proxy.
type TransparentProxying struct {
	// RedirectPortInbound is the proxy's port to which connections to the application are redirected. Default 15006.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	RedirectPortInbound uint32 `json:"redirectPortInbound,omitempty"`
	// RedirectPortOutbound is the proxy's port to which connections of the application are redirected. Default 15001.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	RedirectPortOutbound uint32 `json:"redirectPortOutbound,omitempty"`
	// ReachableServices limits the virtual addresses and headless services that the proxy can reach to these services.
	// Absent means all, an empty list none. The field does not limit outbounds.
	// +kubebuilder:validation:MaxItems=5000
	// +kubebuilder:validation:items:MaxLength=253
	ReachableServices []string `json:"reachableServices,omitzero"`
}

// Probes is a listener for HTTP probes, which answers GET requests of its endpoints without mTLS.
type Probes struct {
	// Port of the listener, on Networking.Address.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port uint32 `json:"port"`
	// Endpoints are the requests that the listener answers; it answers any other request with 404.
	// +kubebuilder:validation:MaxItems=1000
	Endpoints []ProbeEndpoint `json:"endpoints,omitempty"`
}

// ProbeEndpoint maps a path of the listener to one of the application. A query is passed on.
type ProbeEndpoint struct {
	// InboundPort is the port of an inbound, else one of the application.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	InboundPort uint32 `json:"inboundPort"`
	// InboundPath is the application's path, without a query.
	// +kubebuilder:validation:MaxLength=2048
	InboundPath string `json:"inboundPath"`
	// Path of the listener, without a query.
	// +kubebuilder:validation:MaxLength=2048
	Path string `json:"path"`
}

// TCPProbe is a port for TCP or gRPC probes. Nothing but a probe gets through.
type TCPProbe struct {
	// Port of the listener, on Networking.Address.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port uint32 `json:"port"`
	// InboundPort is the port of an inbound, else one of the application. Default Port.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	InboundPort uint32 `json:"inboundPort,omitempty"`
	// Protocol is tcp or grpc. Default: both are allowed.
	Protocol Protocol `json:"protocol,omitempty"`
}

// Application returns where the application probed at that port listens: behind the inbound of the port, preferably one
// that is not Ignored, else on the port itself.
func (d *Dataplane) Application(port uint32) netip.AddrPort {
	net := &d.Spec.Networking
	var behind *Inbound
	for i := range net.Inbound {
		in := &net.Inbound[i]
		if in.Port == port && in.Address == net.Address && (behind == nil || behind.State == InboundIgnored) {
			behind = in
		}
	}
	if behind != nil {
		return AddrPort(behind.ServiceAddress, behind.ServicePort)
	}
	if net.TransparentProxying == nil {
		return AddrPort(loopback, port)
	}
	return AddrPort(net.Address, port)
}

// Node is the proxy's node, empty if unknown.
func (d *Dataplane) Node() string { return d.Labels[LabelNode] }

// IsPod reports whether it was derived from a pod, rather than written by an operator.
func (d *Dataplane) IsPod() bool { return d.Identity.Instance != "" }

// Key implements Object.
func (d *Dataplane) Key() Key { return Key{Kind: KindDataplane, Mesh: d.Mesh, Name: d.Name} }
