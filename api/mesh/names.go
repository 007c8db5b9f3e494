package mesh

// Names that users have in their manifests. They are kept to the letter: people come from a running mesh.
const (
	// Prefix of labels, annotations and tags shared with Kuma.
	Prefix = "kuma.io/"
	// TagService names the service of an inbound or outbound.
	TagService = Prefix + "service"
	// TagProtocol names the protocol of an inbound: tcp, http, http2 or grpc.
	TagProtocol = Prefix + "protocol"
	// LabelMesh names the mesh of an object on Kubernetes.
	LabelMesh = Prefix + "mesh"
	// LabelWorkload names the workload of a Dataplane outside Kubernetes, see Dataplane.Workload.
	LabelWorkload = Prefix + "workload"
	// DefaultMesh is the mesh of an object that names none.
	DefaultMesh = "default"
	// DefaultTrustDomain is the end of each trust domain unless --trust-domain says otherwise.
	DefaultTrustDomain = "sonde.internal"
	// ProxyDomain ends the DNS name that a proxy's certificate carries: <dataplane>.<mesh>.proxy.sonde.internal.
	ProxyDomain = "proxy.sonde.internal"
	// ServingName is a DNS SAN of every serving certificate of the control plane: agents, Envoy and sondectl verify it,
	// whatever address they connect to.
	ServingName = "sonde-cp.sonde.internal"
)

// Ports of a sidecar and of the control plane, as in users' network policies.
const (
	PortAgents        = 5678  // agents and ADS
	PortAdmin         = 5681  // admin API
	PortHealth        = 5680  // health and metrics of the control plane
	PortWebhook       = 5443  // admission webhook
	PortRedirectIn    = 15006 // Envoy's inbound capture listener
	PortRedirectOut   = 15001 // Envoy's outbound capture listener
	PortReadiness     = 15022 // nothing listens here: only redirection leads to its filter chain
	PortVirtualProbes = 9000  // the virtual probe handler of the agent
	PortMetrics       = 9902  // metrics and health of the agent
)

// TrustDomain of a mesh: <mesh>.<suffix>.
func TrustDomain(meshName, suffix string) string { return meshName + "." + suffix }

// ProxyDNSName is the DNS SAN that names a proxy to the control plane.
func ProxyDNSName(meshName, dataplane string) string {
	return dataplane + "." + meshName + "." + ProxyDomain
}

// Names on Kubernetes.
const (
	// TrafficPrefix of annotations about redirection, shared with Kuma.
	TrafficPrefix = "traffic.kuma.io/"
	// OwnPrefix of what is Sonde's alone: labels, annotations, the CRD group.
	OwnPrefix = "sonde.dev/"

	// LabelInjection is a namespace label, and a pod label or annotation: enabled or disabled. The pod wins.
	LabelInjection = Prefix + "sidecar-injection"
	// LabelOwnInjection selects alone where it is set, for clusters in which Kuma still runs.
	LabelOwnInjection = OwnPrefix + "sidecar-injection"
	// AnnotationVirtualProbes is enabled or disabled: whether probes go by the agent.
	AnnotationVirtualProbes = Prefix + "virtual-probes"
	// AnnotationVirtualProbesPort is the agent's port for them.
	AnnotationVirtualProbesPort = Prefix + "virtual-probes-port"
	// AnnotationVirtualProbesPortRange is the range of ports of per-port mode.
	AnnotationVirtualProbesPortRange = Prefix + "virtual-probes-port-range"
	// AnnotationDrainTime is the longest wait for what is open at the end.
	AnnotationDrainTime = Prefix + "sidecar-drain-time"
	// AnnotationExcludeInboundPorts lists ports that are not redirected on the way in.
	AnnotationExcludeInboundPorts = TrafficPrefix + "exclude-inbound-ports"
	// AnnotationExcludeOutboundPorts lists ports that are not redirected on the way out.
	AnnotationExcludeOutboundPorts = TrafficPrefix + "exclude-outbound-ports"
	// AnnotationServerFirstPorts lists ports of protocols in which the server speaks first.
	AnnotationServerFirstPorts = OwnPrefix + "server-first-ports"
	// AnnotationInjectionWarnings holds what the webhook had to say about the pod.
	AnnotationInjectionWarnings = OwnPrefix + "injection-warnings"
	// AnnotationControlPlaneCA holds the control plane's serving CA, PEM, which the kubelet puts into a file for the agent.
	AnnotationControlPlaneCA = OwnPrefix + "control-plane-ca"

	// ContainerSidecar runs the agent and Envoy.
	ContainerSidecar = "kuma-sidecar"
	// ContainerInit sets up redirection.
	ContainerInit = "kuma-init"
)
