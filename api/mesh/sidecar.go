package mesh

import "time"

// The contract between the parts of a sidecar: what the injector writes into a pod, the agent reads and offers, and
// Envoy's configuration refers to.
const (
	// ContainerSidecar runs the agent and Envoy.
	ContainerSidecar = "kuma-sidecar"
	// ContainerInit sets up redirection, where no CNI plugin does.
	ContainerInit = "kuma-init"
	// SidecarUser is the user of ContainerSidecar, by which the kernel's rules recognise Envoy's connections.
	SidecarUser = 5678

	// AgentProgram is the path of the agent in its image.
	AgentProgram = "/usr/bin/sonde-dp"

	// ExecProgram is the path of the helper for exec probes in the image of the agent, which copies it to ExecHelperDir,
	// from where containers run it. Below ExecSocketsDir is a folder for the socket of each container's helper. Both are
	// there if the probe table has exec probes.
	ExecProgram    = "/usr/bin/sonde-exec"
	ExecHelperDir  = "/var/run/sonde-exec/helper"
	ExecSocketsDir = "/var/run/sonde-exec/sockets"

	// VolumeIdentity is the pod's volume with the sidecar's token. Unlike the names of the containers, it is not used
	// by other meshes.
	VolumeIdentity = "sonde-identity"

	// ArgRedirectInbound begins an argument of ContainerInit: whether incoming connections are redirected.
	ArgRedirectInbound = "--redirect-inbound="
	// ArgExcludeInbound is an argument of ContainerInit. The one after it lists ports whose incoming connections are not
	// redirected.
	ArgExcludeInbound = "--exclude-inbound-ports"
	// ArgVirtualPort and ArgProbesMode begin arguments of ContainerSidecar: the virtual port, 0 for none, and the
	// ProbesMode, default ProbesUnified.
	ArgVirtualPort = "--virtual-probes-port="
	ArgProbesMode  = "--virtual-probes-mode="
	// ArgLivenessHold begins the argument with the LivenessHold, which is absent for the default.
	ArgLivenessHold = "--liveness-hold="
	// ArgLBHealthPort and ArgLBDrainTime begin arguments of ContainerSidecar: the port of the agent for load balancers,
	// and how long it keeps serving while it answers them with a failure.
	ArgLBHealthPort = "--lb-health-port="
	ArgLBDrainTime  = "--lb-drain-time="
	// ArgMetricsAddress and ArgMetricsInclude begin arguments of ContainerSidecar: the host:port at which the agent
	// answers Prometheus, and which of Envoy's metrics to include.
	ArgMetricsAddress = "--metrics-addr="
	ArgMetricsInclude = "--metrics-include="

	// EnvProbeTable is the variable of the sidecar with the probe table.
	EnvProbeTable = "KUMA_DATAPLANE_PROBES"
	// EnvRedirection is the variable of the sidecar with the Redirection of a pod without ContainerInit.
	EnvRedirection = "SONDE_REDIRECTION"
	// EnvInstanceIP is the variable of the sidecar with the pod's address.
	EnvInstanceIP = "INSTANCE_IP"
	// EnvPodName and EnvPodNamespace are variables of the sidecar from which its Dataplane's name is made.
	EnvPodName      = "POD_NAME"
	EnvPodNamespace = "POD_NAMESPACE"
	// TokenAudience is the audience of the tokens with which agents join.
	TokenAudience = "sonde-cp"
	// DefaultConcurrency is the number of Envoy's worker threads if its CPU is not limited.
	DefaultConcurrency = 2
	// ProbeHeader is the header with the ID of the probe or hook. It is the only header of a rewritten probe.
	ProbeHeader = "Sonde-Probe"
	// FirstSparePort to LastSparePort are tried in turn if a pod uses PortVirtualProbes itself. LastSparePort also ends
	// the default range of ProbesPerPort mode, which begins with PortVirtualProbes.
	FirstSparePort = 9001
	LastSparePort  = 9020

	// SocketPriority is the SO_PRIORITY by which the kernel's rules recognise connections to the application that must
	// not be redirected to Envoy. Values up to 6 need no capability.
	SocketPriority = 6
	// PathMetrics is the path for Prometheus.
	PathMetrics = "/metrics"
	// PathReady is the agent's readiness: on its own address, on SocketAgent, and through Envoy on PortReadiness.
	PathReady = "/readyz"
	// PathEnvoyReady is Envoy's readiness, on SocketReady.
	PathEnvoyReady = "/ready"
	// OutboundStats is the prefix of Envoy's statistics about what the application calls: the service follows.
	OutboundStats = "outbound_"
	// InboundStats is the prefix of Envoy's statistics about inbound traffic: a drain waits until they show no traffic.
	InboundStats = "inbound_"
	// RuntimeEnding is the key of Envoy's runtime that the agent sets to 100 (%) once the proxy ends.
	RuntimeEnding = "sonde.ending"
)

// Records are the contents of Envoy's access logs on SocketRecords about each connection or request that a mesh in mode
// STRICT would reject.
const (
	// RecordsRequests is the access log of unencrypted requests, RecordsConnections of unencrypted connections other
	// than HTTP, RecordsTLS of connections with the application's own TLS, and RecordsNoInbound of connections to ports
	// without an inbound.
	RecordsRequests    = "requests"
	RecordsConnections = "connections"
	RecordsTLS         = "tls_connections"
	RecordsNoInbound   = "no_inbound_connections"

	// RecordsLog is the attribute with the access log's name in all records. The other attributes are in each record: when
	// it was written (Envoy's ACCESS_LOG_TYPE), the IP address of the caller, the port, the number of the connection, how
	// many bytes were received, and the first characters of the user agent, as many as in KubeletAgent.
	RecordsLog       = "log"
	RecordType       = "type"
	RecordSource     = "source"
	RecordPort       = "port"
	RecordReceived   = "received"
	RecordConnection = "connection"
	RecordAgent      = "agent"

	// RecordsStats is the prefix of Envoy's counters of delivered records (logs_written) and lost records
	// (RecordsDropped). RecordsNoInbound has one pair. Each other access log has one pair per inbound, whose names contain
	// InboundStats and the inbound's port.
	RecordsStats   = "access_logs.open_telemetry_access_log."
	RecordsDropped = "logs_dropped"

	// RecordsInterval is how often an ongoing connection or request is recorded.
	RecordsInterval = 30 * time.Second

	// KubeletAgent begins the user agent of the kubelet's probes.
	KubeletAgent = "kube-probe/"
)

// Files and sockets in the agent's work directory, which is Envoy's working directory, and the names of the secrets in
// the files.
const (
	FileIdentity  = "sds/identity.json"
	FileCA        = "sds/ca.json"
	FileServingCA = "sds/serving-ca.json"
	SocketAdmin   = "admin.sock" // Envoy's admin interface
	SocketReady   = "ready.sock" // Envoy's readiness listener, which comes with LDS
	SocketAgent   = "agent.sock" // the agent's readiness, for Envoy
	// SocketRecords is where the agent receives Envoy's access logs of traffic that a mesh in mode STRICT would reject.
	SocketRecords = "records.sock"

	SecretIdentity  = "identity"   // the proxy's certificate and key
	SecretCA        = "ca"         // the trusted roots
	SecretServingCA = "serving-ca" // the CAs for verifying the control plane
)
