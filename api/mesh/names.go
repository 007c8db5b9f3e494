package mesh

import (
	"strings"
	"time"
)

// Names in users' existing manifests, from a running mesh. They must not change.
const (
	// Prefix of labels, annotations and tags shared with Kuma.
	Prefix = "kuma.io/"
	// TagService names the service of an inbound or outbound.
	TagService = Prefix + "service"
	// TagProtocol names the protocol of an inbound: tcp, http, http2 or grpc.
	TagProtocol = Prefix + "protocol"
	// LabelMesh names the mesh of an object on Kubernetes.
	LabelMesh = Prefix + "mesh"
	// LabelWorkload names the workload of a Dataplane outside Kubernetes, see Dataplane.Workload. It is a tag of inbounds,
	// too.
	LabelWorkload = Prefix + "workload"
	// labelDisplayName is a label by which Kuma selects an object by its name.
	labelDisplayName = Prefix + "display-name"
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

// DefaultSidecarMemory is the memory limit of an injected sidecar in bytes, and the assumed memory of an agent that
// does not report it.
const DefaultSidecarMemory = 512 << 20

// DefaultLBDrainTime is how long a proxy keeps serving after load balancers can see that it drains: two of their
// checks, ten seconds apart.
const (
	DefaultLBDrainTime = 20 * time.Second
	AllowedLBDrainTime = "must be a duration from 0s to 1h, such as 20s"
)

// Ports of a sidecar and of the control plane, as in users' network policies.
const (
	PortAgents      = 5678  // agents and ADS
	PortAdmin       = 5681  // admin API
	PortHealth      = 5680  // health and metrics of the control plane
	PortPeers       = 5682  // replicas of the control plane, among each other
	PortWebhook     = 5443  // admission webhook
	PortRedirectIn  = 15006 // Envoy's inbound capture listener
	PortRedirectOut = 15001 // Envoy's outbound capture listener
	// PortReadiness is for the readiness of the sidecar; nothing listens there, so only redirected connections get an
	// answer.
	PortReadiness     = 15022
	PortVirtualProbes = 9000 // the virtual probe handler of the agent
	PortMetrics       = 9902 // metrics and health of the agent, on loopback
	PortPodMetrics    = 5670 // metrics of the agent and of Envoy, for Prometheus
)

// TrustDomain returns the trust domain of a mesh, <mesh>.<suffix>.
func TrustDomain(meshName, suffix string) string { return meshName + "." + suffix }

// ProxyDNSName returns the DNS SAN by which the control plane identifies a proxy.
func ProxyDNSName(meshName, dataplane string) string {
	return dataplane + "." + meshName + "." + ProxyDomain
}

// ObjectDataplane returns the name in the mesh of the Dataplane of a pod, or of a Dataplane object.
func ObjectDataplane(namespace, name string) string { return name + "." + namespace }

// ObjectOf is the inverse of ObjectDataplane; ok is false for a name that no object can have.
func ObjectOf(dataplane string) (namespace, name string, ok bool) {
	i := strings.LastIndexByte(dataplane, '.') // a pod may have dots in its name, a namespace may not
	if i <= 0 {
		return "", "", false
	}
	return dataplane[i+1:], dataplane[:i], true
}

// ServiceAccountPath returns the path of the SPIFFE ID of a pod.
func ServiceAccountPath(namespace, serviceAccount string) string {
	return "/ns/" + namespace + "/sa/" + serviceAccount
}

// Names on Kubernetes.
const (
	// TrafficPrefix of annotations about redirection, shared with Kuma.
	TrafficPrefix = "traffic.kuma.io/"
	// Group and Version of the objects.
	Group   = "sonde.dev"
	Version = "v1alpha1"
	// OwnPrefix of labels and annotations specific to Sonde.
	OwnPrefix = Group + "/"
	// kruisePrefix of annotations shared with OpenKruise.
	kruisePrefix = "apps.kruise.io/"
	// prometheusPrefix of annotations, a convention among users of Prometheus.
	prometheusPrefix = "prometheus.io/"

	// LabelNode is a Dataplane label with its node, for services whose InternalTrafficPolicy is TrafficLocal.
	LabelNode = OwnPrefix + "node"

	// LabelInjection is a namespace label, and a pod label or annotation: enabled or disabled. The pod's takes precedence.
	LabelInjection = Prefix + "sidecar-injection"
	// LabelOwnInjection takes precedence over LabelInjection, for clusters in which Kuma still runs.
	LabelOwnInjection = OwnPrefix + "sidecar-injection"
	// AnnotationVirtualProbes is enabled or disabled: whether the agent answers the probes.
	AnnotationVirtualProbes = Prefix + "virtual-probes"
	// AnnotationVirtualProbesPort is the agent's port for probes.
	AnnotationVirtualProbesPort = Prefix + "virtual-probes-port"
	// AnnotationProbeProxyPort is the port of Kuma's application probe proxy, 0 to disable it. It has the effect of
	// AnnotationVirtualProbesPort, and with 0 the effect of AnnotationVirtualProbes: disabled.
	AnnotationProbeProxyPort = Prefix + "application-probe-proxy-port"
	// AnnotationVirtualProbesPortRange is the range of ports of ProbesPerPort mode.
	AnnotationVirtualProbesPortRange = Prefix + "virtual-probes-port-range"
	// AnnotationVirtualProbesMode is the ProbesMode that a pod was injected with, or that an operator sets on a pod or
	// namespace. On a written Dataplane it is a label.
	AnnotationVirtualProbesMode = OwnPrefix + "virtual-probes-mode"
	// AnnotationGuardedLiveness of a pod or its namespace is enabled or disabled: whether a failing liveness probe waits
	// until a restart is granted. The pod's takes precedence.
	AnnotationGuardedLiveness = OwnPrefix + "guarded-liveness"
	// AnnotationEnhancedLiveness is OpenKruise's: "true" on a pod means the same as AnnotationGuardedLiveness enabled, and
	// "false" as disabled. AnnotationGuardedLiveness on the pod takes precedence.
	AnnotationEnhancedLiveness = kruisePrefix + "using-enhanced-liveness"
	// AnnotationProbeContext is OpenKruise's, too: the liveness probes of a pod as the user wrote them, in JSON.
	AnnotationProbeContext = kruisePrefix + "container-probe-context"
	// AnnotationGuardedExec of a pod or its namespace is enabled or disabled: it sets whether the exec liveness probes
	// of a guarded pod are guarded, too. The pod's takes precedence. The default is enabled for pods with an annotation
	// of OpenKruise, otherwise disabled.
	AnnotationGuardedExec = OwnPrefix + "guarded-exec"
	// AnnotationLiveness of a pod overrides its guarded liveness probes in an emergency. Its value is a Liveness.
	AnnotationLiveness = OwnPrefix + "liveness"
	// ConditionLivenessHeld is a pod condition: a failure of a guarded liveness probe is held back from the kubelet.
	ConditionLivenessHeld = OwnPrefix + "LivenessHeld"
	// AnnotationGateway of a pod is enabled or disabled: whether its incoming connections reach the application
	// without Envoy, as an ingress controller needs.
	AnnotationGateway = Prefix + "gateway"
	// LabelCNI is a label or an annotation of a namespace, enabled or disabled: whether the CNI plugin redirects the
	// connections of its pods, in place of ContainerInit.
	LabelCNI = OwnPrefix + "cni"
	// ConditionCNIReady is a node condition: the CNI plugin redirects the connections of pods that start there.
	ConditionCNIReady = "cni." + OwnPrefix + "Ready"
	// ReasonPluginsAfter is the reason of a true ConditionCNIReady on a node where other plugins run after Sonde's, and
	// may change what it has set. The message names them.
	ReasonPluginsAfter = "PluginsAfter"
	// AnnotationDrainTime is how long a drain may wait for open requests and connections.
	AnnotationDrainTime = Prefix + "sidecar-drain-time"
	// AnnotationLBHealthPort is the port at which the agent answers load balancers; disabled by default.
	// AnnotationLBDrainTime is how long a terminating proxy keeps serving after it has answered them with a failure.
	AnnotationLBHealthPort = OwnPrefix + "lb-health-port"
	AnnotationLBDrainTime  = OwnPrefix + "lb-drain-time"
	// AnnotationMetricsPort is the port at which the agent answers Prometheus, 0 for none.
	AnnotationMetricsPort = OwnPrefix + "metrics-port"
	// AnnotationDrain of a pod or node means that it should get no new traffic. Its value is a human-readable reason.
	AnnotationDrain = OwnPrefix + "drain"
	// AnnotationSidecarCPU and AnnotationSidecarMemory are the sidecar's requests, AnnotationSidecarCPULimit and
	// AnnotationSidecarMemoryLimit its limits, as quantities. They are annotations of a pod or its namespace; the pod's
	// take precedence.
	AnnotationSidecarCPU         = OwnPrefix + "sidecar-cpu"
	AnnotationSidecarCPULimit    = OwnPrefix + "sidecar-cpu-limit"
	AnnotationSidecarMemory      = OwnPrefix + "sidecar-memory"
	AnnotationSidecarMemoryLimit = OwnPrefix + "sidecar-memory-limit"
	// AnnotationExcludeInboundPorts lists ports whose incoming connections are not redirected.
	AnnotationExcludeInboundPorts = TrafficPrefix + "exclude-inbound-ports"
	// AnnotationExcludeOutboundPorts lists ports whose outgoing connections are not redirected.
	AnnotationExcludeOutboundPorts = TrafficPrefix + "exclude-outbound-ports"
	// AnnotationServerFirstPorts lists ports of protocols in which the server sends first.
	AnnotationServerFirstPorts = OwnPrefix + "server-first-ports"
	// AnnotationReachableServices lists the services that the pod may call, by their kuma.io/service; an empty list means
	// no service.
	AnnotationReachableServices = Prefix + "transparent-proxying-reachable-services"
	// AnnotationInjectionWarnings holds the warnings of the webhook about the pod.
	AnnotationInjectionWarnings = OwnPrefix + "injection-warnings"
	// AnnotationMeshes of a namespace lists the meshes that its pods and Dataplanes may join, see CheckMeshOf; without
	// it they may join all.
	AnnotationMeshes = OwnPrefix + "meshes"
	// AnnotationPrometheusScrape, AnnotationPrometheusPort and AnnotationPrometheusPath are annotations by which many
	// Prometheus installations select and scrape pods.
	AnnotationPrometheusScrape = prometheusPrefix + "scrape"
	AnnotationPrometheusPort   = prometheusPrefix + "port"
	AnnotationPrometheusPath   = prometheusPrefix + "path"
	// AnnotationControlPlaneCA holds the control plane's serving CAs, PEM: two during a rotation. The kubelet writes it to
	// a file for the agent.
	AnnotationControlPlaneCA = OwnPrefix + "control-plane-ca"
)
