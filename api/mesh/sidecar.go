package mesh

import "time"

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
	// ArgMetricsAddress and ArgMetricsInclude begin arguments of ContainerSidecar: where the agent answers Prometheus, host:port, and with
	// which of Envoy's metrics.
	ArgMetricsAddress = "--metrics-addr="
	ArgMetricsInclude = "--metrics-include="

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
	// PathMetrics is what Prometheus asks for.
	PathMetrics = "/metrics"
	// PathReady is the agent's readiness: on its own address, on SocketAgent, and through Envoy on PortReadiness.
	PathReady = "/readyz"
	// PathEnvoyReady is Envoy's readiness, on SocketReady.
	PathEnvoyReady = "/ready"
	// InboundStats is the prefix of Envoy's statistics about inbound traffic: a drain waits until they show none.
	InboundStats = "inbound_"
	// RuntimeEnding is the key of Envoy's runtime that the agent sets to 100 (%) once the proxy ends.
	RuntimeEnding = "sonde.ending"
)

// Records are what Envoy's access logs on SocketRecords say of each connection or request that a mesh in mode STRICT would refuse.
const (
	// RecordsRequests is the access log of requests without encryption, RecordsConnections of connections without it in protocols other than
	// HTTP, RecordsTLS of those with the application's own TLS, and RecordsNoInbound of those to ports without an inbound.
	RecordsRequests    = "requests"
	RecordsConnections = "connections"
	RecordsTLS         = "tls_connections"
	RecordsNoInbound   = "no_inbound_connections"

	// RecordsLog is the attribute of all records of an access log with its name, and these are those of a record: when it was written (Envoy's
	// ACCESS_LOG_TYPE), the IP address that has called, the port, the number of the connection, how many bytes have come, and the first
	// characters of the user agent, as many as KubeletAgent has.
	RecordsLog       = "log"
	RecordType       = "type"
	RecordSource     = "source"
	RecordPort       = "port"
	RecordReceived   = "received"
	RecordConnection = "connection"
	RecordAgent      = "agent"

	// RecordsStats is the prefix of Envoy's counters of records that have arrived, logs_written, and that have not, RecordsDropped: each of an
	// access log, of which all but RecordsNoInbound have one for each inbound, InboundStats and its port.
	RecordsStats   = "access_logs.open_telemetry_access_log."
	RecordsDropped = "logs_dropped"

	// RecordsInterval is how often a connection or a request is recorded that goes on.
	RecordsInterval = 30 * time.Second

	// KubeletAgent begins the user agent of the kubelet's probes.
	KubeletAgent = "kube-probe/"
)

// Files and sockets in the agent's work directory, which is Envoy's working directory, and the names of the secrets in the files.
const (
	FileIdentity  = "sds/identity.json"
	FileCA        = "sds/ca.json"
	FileServingCA = "sds/serving-ca.json"
	SocketAdmin   = "admin.sock"   // Envoy's admin interface
	SocketReady   = "ready.sock"   // Envoy's readiness listener, which comes with LDS
	SocketAgent   = "agent.sock"   // the agent's readiness, for Envoy
	SocketRecords = "records.sock" // the agent takes Envoy's access logs of what a mesh in mode STRICT would refuse

	SecretIdentity  = "identity"   // the proxy's certificate and key
	SecretCA        = "ca"         // the roots that it trusts
	SecretServingCA = "serving-ca" // the CAs by which it verifies the control plane
)
