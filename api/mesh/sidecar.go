package mesh

// The contract of a sidecar's parts: what the injector writes into a pod, the agent reads and offers, and Envoy's configuration
// refers to.
const (
	// ContainerSidecar runs the agent and Envoy.
	ContainerSidecar = "kuma-sidecar"
	// ContainerInit sets up redirection.
	ContainerInit = "kuma-init"
	// SidecarUser is the user of ContainerSidecar: the kernel's rules recognise Envoy's connections by it.
	SidecarUser = 5678

	// AgentProgram is the path of the agent in its image.
	AgentProgram = "/usr/bin/sonde-dp"

	// VolumeIdentity is the pod's volume with the sidecar's token. Other meshes use the names of the containers, too.
	VolumeIdentity = "sonde-identity"

	// ArgVirtualPort and ArgProbesMode begin arguments of ContainerSidecar: the virtual port, 0 for none, and the ProbesMode, which is
	// ProbesUnified if there is none.
	ArgVirtualPort = "--virtual-probes-port="
	ArgProbesMode  = "--virtual-probes-mode="
	// ArgLBHealthPort and ArgLBDrainTime begin arguments of ContainerSidecar: the port of the agent for load balancers, and how long it
	// serves on while it tells them to go away.
	ArgLBHealthPort = "--lb-health-port="
	ArgLBDrainTime  = "--lb-drain-time="

	// EnvProbeTable is the variable of the sidecar with the probe table.
	EnvProbeTable = "KUMA_DATAPLANE_PROBES"
	// EnvInstanceIP is the variable of the sidecar with the pod's address.
	EnvInstanceIP = "INSTANCE_IP"
	// EnvPodName and EnvPodNamespace are variables of the sidecar, of which its Dataplane's name is made.
	EnvPodName      = "POD_NAME"
	EnvPodNamespace = "POD_NAMESPACE"
	// TokenAudience is the audience of the tokens with which agents join.
	TokenAudience = "sonde-cp"
	// DefaultConcurrency is the number of Envoy's worker threads where nothing limits its CPU.
	DefaultConcurrency = 2
	// ProbeHeader is the header with the ID of the probe or hook. It is the only header of a rewritten probe.
	ProbeHeader = "Sonde-Probe"
	// FirstSparePort and LastSparePort are tried in turn if a pod uses PortVirtualProbes itself. LastSparePort also ends the default
	// range of ProbesPerPort mode, which begins with PortVirtualProbes.
	FirstSparePort = 9001
	LastSparePort  = 9020

	// SocketPriority is the SO_PRIORITY by which the kernel's rules recognise connections to the application that must not
	// be redirected to Envoy. Setting one of at most 6 takes no capability.
	SocketPriority = 6
	// PathReady is the agent's readiness: on its own address, on SocketAgent, and through Envoy on PortReadiness.
	PathReady = "/readyz"
	// PathEnvoyReady is Envoy's readiness, on SocketReady.
	PathEnvoyReady = "/ready"
	// InboundStats is the prefix of Envoy's statistics about inbound traffic: a drain waits until they show none.
	InboundStats = "inbound_"
	// RuntimeEnding is the key of Envoy's runtime that the agent sets to 100 (%) once the proxy ends.
	RuntimeEnding = "sonde.ending"
)

// Files and sockets in the agent's work directory, which is Envoy's working directory, and the names of the secrets in the files.
const (
	FileIdentity  = "sds/identity.json"
	FileCA        = "sds/ca.json"
	FileServingCA = "sds/serving-ca.json"
	SocketAdmin   = "admin.sock" // Envoy's admin interface
	SocketReady   = "ready.sock" // Envoy's readiness listener, which comes with LDS
	SocketAgent   = "agent.sock" // the agent's readiness, for Envoy

	SecretIdentity  = "identity"   // the proxy's certificate and key
	SecretCA        = "ca"         // the roots that it trusts
	SecretServingCA = "serving-ca" // the CAs by which it verifies the control plane
)
