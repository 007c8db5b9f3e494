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
)

// TrustDomain of a mesh: <mesh>.<suffix>.
func TrustDomain(meshName, suffix string) string { return meshName + "." + suffix }

// ProxyDNSName is the DNS SAN that names a proxy to the control plane.
func ProxyDNSName(meshName, dataplane string) string {
	return dataplane + "." + meshName + "." + ProxyDomain
}
