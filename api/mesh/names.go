package mesh

import "time"

// Names that are in users' manifests already, because they come from a running mesh. They must not change.
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
	// DefaultTrustDomain is the default suffix of all trust domains.
	DefaultTrustDomain = "sonde.internal"
	// ProxyDomain is the suffix of the DNS SAN of a proxy's certificate: <dataplane>.<mesh>.proxy.sonde.internal.
	ProxyDomain = "proxy.sonde.internal"
	// ServingName is a DNS SAN of the control plane's serving certificate. Agents, Envoy and sondectl verify it, whatever
	// address they connect to.
	ServingName = "sonde-cp.sonde.internal"
)

// DefaultDrainTime is the default of an agent's drain time, MinDrainTime and MaxDrainTime are the limits.
const (
	DefaultDrainTime = 25 * time.Second
	MinDrainTime     = time.Second
	MaxDrainTime     = time.Hour
	AllowedDrainTime = "must be a duration from 1s to 1h, such as 30s"
)

// Ports of a sidecar and of the control plane, as in users' network policies.
const (
	PortAgents        = 5678  // agents and ADS
	PortAdmin         = 5681  // admin API
	PortHealth        = 5680  // health and metrics of the control plane
	PortWebhook       = 5443  // admission webhook
	PortRedirectIn    = 15006 // Envoy's inbound capture listener
	PortRedirectOut   = 15001 // Envoy's outbound capture listener
	PortReadiness     = 15022 // readiness of the sidecar; nothing listens here, only redirected connections get an answer
	PortVirtualProbes = 9000  // the virtual probe handler of the agent
	PortMetrics       = 9902  // metrics and health of the agent
)

// TrustDomain returns the trust domain of a mesh, <mesh>.<suffix>.
func TrustDomain(meshName, suffix string) string { return meshName + "." + suffix }

// ProxyDNSName returns the DNS SAN by which the control plane identifies a proxy.
func ProxyDNSName(meshName, dataplane string) string {
	return dataplane + "." + meshName + "." + ProxyDomain
}

// ObjectDataplane returns the name in the mesh of the Dataplane of a pod, and of a Dataplane object.
func ObjectDataplane(namespace, name string) string { return name + "." + namespace }

// ServiceAccountPath returns the path of the SPIFFE ID of a pod.
func ServiceAccountPath(namespace, serviceAccount string) string {
	return "/ns/" + namespace + "/sa/" + serviceAccount
}

// Names on Kubernetes.
const (
	// TrafficPrefix of annotations about redirection, shared with Kuma.
	TrafficPrefix = "traffic.kuma.io/"
	// OwnPrefix of labels and annotations that only Sonde has; the CRD group is the same.
	OwnPrefix = "sonde.dev/"

	// LabelInjection is a namespace label, and a pod label or annotation: enabled or disabled. The pod wins.
	LabelInjection = Prefix + "sidecar-injection"
	// LabelOwnInjection takes precedence over LabelInjection, for clusters in which Kuma still runs.
	LabelOwnInjection = OwnPrefix + "sidecar-injection"
	// AnnotationVirtualProbes is enabled or disabled: whether the agent answers the probes.
	AnnotationVirtualProbes = Prefix + "virtual-probes"
	// AnnotationVirtualProbesPort is the agent's port for them.
	AnnotationVirtualProbesPort = Prefix + "virtual-probes-port"
	// AnnotationVirtualProbesPortRange is the range of ports of per-port mode.
	AnnotationVirtualProbesPortRange = Prefix + "virtual-probes-port-range"
	// AnnotationDrainTime is how long a drain may wait for open requests and connections.
	AnnotationDrainTime = Prefix + "sidecar-drain-time"
	// AnnotationExcludeInboundPorts lists ports to which incoming connections are not redirected.
	AnnotationExcludeInboundPorts = TrafficPrefix + "exclude-inbound-ports"
	// AnnotationExcludeOutboundPorts lists ports to which outgoing connections are not redirected.
	AnnotationExcludeOutboundPorts = TrafficPrefix + "exclude-outbound-ports"
	// AnnotationServerFirstPorts lists ports of protocols in which the server sends first.
	AnnotationServerFirstPorts = OwnPrefix + "server-first-ports"
	// AnnotationReachableServices lists the services that the pod may see, by their kuma.io/service; an empty list is none.
	AnnotationReachableServices = Prefix + "transparent-proxying-reachable-services"
	// AnnotationInjectionWarnings holds the warnings of the webhook about the pod.
	AnnotationInjectionWarnings = OwnPrefix + "injection-warnings"
	// AnnotationControlPlaneCA holds the control plane's serving CA, PEM. The kubelet writes it to a file for the agent.
	AnnotationControlPlaneCA = OwnPrefix + "control-plane-ca"
)
