package mesh

import "strings"

// Dataplane is one proxy and the application beside it.
type Dataplane struct {
	Meta
	Spec DataplaneSpec `json:"spec"`
	// Identity is set by a source that knows more than people write, such as Kubernetes.
	Identity Identity `json:"-"`
}

// Identity is whom a proxy's certificate identifies, as its source knows it.
type Identity struct {
	// Path of the SPIFFE ID, such as /ns/shop/sa/web. Default /workload/<Workload()>.
	Path string
	// Instance tells a proxy from an earlier one of the same name: the pod's UID. Empty where nothing does.
	Instance string
}

// DataplaneSpec is the spec of a Dataplane.
type DataplaneSpec struct {
	Networking Networking `json:"networking"`
	// Probes is deprecated: accepted with a warning.
	Probes *Probes `json:"probes,omitempty"`
	// TCPProbes is deprecated: accepted with a warning.
	TCPProbes []TCPProbe `json:"tcpProbes,omitempty"`
}

// Networking has the addresses and ports of a proxy.
type Networking struct {
	// Address is the IP address under which other proxies reach this one.
	Address             string               `json:"address"`
	Inbound             []Inbound            `json:"inbound,omitempty"`
	Outbound            []Outbound           `json:"outbound,omitempty"`
	TransparentProxying *TransparentProxying `json:"transparentProxying,omitempty"`
}

// Inbound is one port at which the mesh reaches the application.
type Inbound struct {
	// Port that the proxy listens on, or with TransparentProxying the port that is redirected to it.
	Port uint32 `json:"port"`
	// ServicePort is the application's port. Default Port.
	ServicePort uint32 `json:"servicePort,omitempty"`
	// ServiceAddress is the application's IP address. Default 127.0.0.1, with TransparentProxying Address.
	ServiceAddress string `json:"serviceAddress,omitempty"`
	// Address overrides Networking.Address for this inbound.
	Address string  `json:"address,omitempty"`
	Tags    Tags    `json:"tags"`
	Health  *Health `json:"health,omitempty"`
	// ServerFirst says that in the protocol the server sends first (MySQL, SMTP). In PERMISSIVE mode the port then has no
	// TLS inspector and accepts only plain text; in STRICT mode it has no effect.
	ServerFirst bool `json:"serverFirst,omitempty"`
}

// Outbound is a local port at which the application reaches a service.
type Outbound struct {
	// Address is an IP address. Default 127.0.0.1.
	Address string `json:"address,omitempty"`
	Port    uint32 `json:"port"`
	Tags    Tags   `json:"tags"`
}

// TransparentProxying is set where the kernel redirects the application's connections to the proxy.
type TransparentProxying struct {
	RedirectPortInbound  uint32 `json:"redirectPortInbound,omitempty"`
	RedirectPortOutbound uint32 `json:"redirectPortOutbound,omitempty"`
	// ReachableServices limits the virtual addresses and headless services that the proxy knows to those of these services. Absent
	// means all, an empty list none. Outbounds do not count.
	ReachableServices []string `json:"reachableServices,omitzero"`
}

// Probes configures Kuma's deprecated virtual listener for HTTP probes.
type Probes struct {
	Port      uint32          `json:"port"`
	Endpoints []ProbeEndpoint `json:"endpoints,omitempty"`
}

// ProbeEndpoint maps a path of the virtual listener to one of the application.
type ProbeEndpoint struct {
	InboundPort uint32 `json:"inboundPort"`
	InboundPath string `json:"inboundPath"`
	Path        string `json:"path"`
}

// TCPProbe is a port that may be probed.
type TCPProbe struct {
	Port uint32 `json:"port"`
}

// Key implements Object.
func (d *Dataplane) Key() Key { return Key{Kind: KindDataplane, Mesh: d.Mesh, Name: d.Name} }

// Workload returns what the proxy's certificate identifies outside Kubernetes: the label kuma.io/workload, else the
// kuma.io/service of the first inbound, "" if there is neither. It is never the name of the replica.
func (d *Dataplane) Workload() string {
	if w := d.Labels[LabelWorkload]; w != "" {
		return w
	}
	if len(d.Spec.Networking.Inbound) > 0 {
		return d.Spec.Networking.Inbound[0].Tags.Service()
	}
	return ""
}

// SPIFFEPath returns the path of the URI SAN of the proxy's certificate, "" if the Dataplane has neither an Identity nor a
// workload.
func (d *Dataplane) SPIFFEPath() string {
	if d.Identity.Path != "" {
		return d.Identity.Path
	}
	if w := d.Workload(); w != "" {
		return WorkloadPath(w)
	}
	return ""
}

// workloadPrefix begins the SPIFFE path of a workload outside Kubernetes.
const workloadPrefix = "/workload/"

// WorkloadPath returns the SPIFFE path of a workload outside Kubernetes.
func WorkloadPath(workload string) string { return workloadPrefix + workload }

// WorkloadText returns for people what a SPIFFE path names: the name of a workload, and any other path whole.
func WorkloadText(path string) string {
	if workload, ok := WorkloadOf(path); ok {
		return workload
	}
	return path
}

// WorkloadOf is the reverse of WorkloadPath. It returns false for any other path.
func WorkloadOf(path string) (string, bool) {
	workload, ok := strings.CutPrefix(path, workloadPrefix)
	return workload, ok && workload != "" && !strings.Contains(workload, "/")
}

// SPIFFEID returns the URI SAN of the proxy's certificate, "" if there is no SPIFFEPath.
func (d *Dataplane) SPIFFEID(trustDomainSuffix string) string {
	path := d.SPIFFEPath()
	if path == "" {
		return ""
	}
	return "spiffe://" + TrustDomain(d.Mesh, trustDomainSuffix) + path
}
