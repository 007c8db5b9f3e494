package webhook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Fixed values of Sonde's containers and volumes.
const (
	volumeWork    = "sonde-work"
	mountIdentity = "/var/run/secrets/" + mesh.Group
	mountWork     = "/var/run/sonde"
	workDirectory = mountWork + "/agent" // a subdirectory, since all users may enter the mount itself, and the directory has secrets
	fileToken     = "token"
	fileCA        = "ca.crt"
	configMapCA   = "sonde-ca"
	tokenSeconds  = 3600
	// gracePeriod is the default of terminationGracePeriodSeconds.
	gracePeriod = 30
	// graceReserve is the part of the grace period after the drain, in which Envoy and the agent exit.
	graceReserve = 5 * time.Second
)

// initContainer returns kuma-init, which sets up redirection. It runs as root, because otherwise its effective set
// would lack the capability.
func (in *injection) initContainer() corev1.Container {
	r := in.redirection()
	c := corev1.Container{
		Name:            mesh.ContainerInit,
		Image:           in.options.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{mesh.AgentProgram, "install", "transparent-proxy"},
		Args: slices.Concat([]string{"--redirect-outbound-port", strconv.Itoa(mesh.PortRedirectOut)}, in.inboundArgs(), []string{
			"--redirect-inbound-port", strconv.Itoa(mesh.PortRedirectIn),
			"--kuma-dp-uid", strconv.Itoa(mesh.SidecarUser),
			mesh.ArgExcludeInbound, joinPorts(r.ExcludeInboundPorts),
			"--exclude-outbound-ports", joinPorts(r.ExcludeOutboundPorts),
			"--verbose",
			"--ip-family-mode", r.Families,
		}),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: securityContext(0, &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"},
		}),
		Resources: cloneResources(&in.resources),
	}
	if r.MetricsPort != 0 {
		c.Args = append(c.Args, metricsPortFlag, number(r.MetricsPort))
	}
	if r.GuardedPort != 0 {
		c.Args = append(c.Args, guardedPortFlag+number(r.GuardedPort))
	}
	if in.perPort() {
		c.Args = append(c.Args, redirectProbesFlag, joinProbes(r.TCPProbes))
	}
	return c
}

// excludedInbound returns the ports that are not redirected: the ports for probes and load balancers, then the user's.
func (in *injection) excludedInbound() []int32 {
	ports := in.agentPorts()
	if lb := in.settings.lbHealthPort; lb != 0 {
		ports = append(ports, lb)
	}
	return slices.Concat(ports, slices.DeleteFunc(slices.Clone(in.settings.excludeInbound), func(p int32) bool {
		return slices.Contains(ports, p) || p == in.metricsPort // this port has its own flag
	}))
}

// sidecar returns kuma-sidecar, which runs the agent and Envoy. Later containers start when it is ready
// (docs/decisions/024-start-gate.md).
func (in *injection) sidecar() corev1.Container {
	c := corev1.Container{
		Name:            mesh.ContainerSidecar,
		Image:           in.options.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{
			"run",
			"--log-level=info",
			"--cp-address=" + in.options.ControlPlane,
			"--ca-cert-file=" + mountIdentity + "/" + fileCA,
			"--dataplane-token-file=" + mountIdentity + "/" + fileToken,
			"--name=$(" + mesh.EnvPodName + ").$(" + mesh.EnvPodNamespace + ")",
			meshFlag + in.mesh,
			"--work-dir=" + workDirectory,
			"--drain-time=" + in.drainTime().String(),
			"--last-to-end=" + strconv.FormatBool(in.form == Native), // the kubelet stops a native sidecar after all other containers
			mesh.ArgVirtualPort + strconv.Itoa(int(in.port)),
		},
		Env: []corev1.EnvVar{
			fieldEnv(mesh.EnvInstanceIP, "status.podIP"),
			fieldEnv(mesh.EnvPodName, "metadata.name"),
			fieldEnv(mesh.EnvPodNamespace, "metadata.namespace"),
			{Name: mesh.EnvProbeTable, Value: in.encodedTable},
		},
		SecurityContext: securityContext(mesh.SidecarUser, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}),
		Resources:       cloneResources(&in.resources),
		// Nothing listens on this port. Only a redirected connection gets a response, so a pod without redirection is not
		// ready. A single late response does not make the pod unready, since on a node with too little CPU all pods would
		// flap.
		ReadinessProbe:           readiness(3),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // contains why the agent has exited
		// The kubelet calls the preStop hooks of all containers when the pod begins to terminate, but stops the sidecar last.
		// Until then, clients outside the mesh would keep their connections to an Envoy whose application has exited.
		Lifecycle: &corev1.Lifecycle{
			PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
				Command: []string{mesh.AgentProgram, "drain", "--begin", "--work-dir=" + workDirectory},
			}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: mesh.VolumeIdentity, MountPath: mountIdentity, ReadOnly: true},
			{Name: volumeWork, MountPath: mountWork},
		},
	}
	if in.cni {
		c.Env = append(c.Env, corev1.EnvVar{Name: mesh.EnvRedirection, Value: in.encodedRedirection})
	}
	if in.perPort() {
		c.Args = append(c.Args, mesh.ArgProbesMode+string(in.mode))
	}
	if in.options.Hold == mesh.HoldWarning {
		c.Args = append(c.Args, mesh.ArgLivenessHold+string(in.options.Hold))
	}
	c.Args = slices.Concat(c.Args, in.loadBalancerArgs(), in.metricsArgs())
	if in.hasGuarded() {
		c.LivenessProbe = in.alive()
	}
	if in.hasExec() {
		c.VolumeMounts = append(c.VolumeMounts, execMounts...)
	}
	if in.form == Native {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		c.StartupProbe = readiness(startAttempts)
		return c
	}
	// Not httpGet: its connection would be refused while the agent starts, and the kubelet would kill the container.
	c.Lifecycle.PostStart = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
		Command: []string{mesh.AgentProgram, "wait", "--timeout=5s", "--start-anyway"},
	}}
	return c
}

// startAttempts is the number of seconds before the kubelet restarts a native sidecar that does not become ready:
// longer than a usual outage of the control plane.
const startAttempts = 600

// readiness returns the probe that calls the agent through Envoy's redirection each second.
func readiness(failureThreshold int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: mesh.PathReady, Port: intstr.FromInt32(mesh.PortReadiness),
		}},
		// With a timeout of a second, idle pods flap on a busy node.
		PeriodSeconds: 1, TimeoutSeconds: 3, FailureThreshold: failureThreshold,
	}
}

// volumes returns the work directory, in memory, and a volume with the token and the control plane's CA. The token has
// mode 0644: in a pod with several users root owns it, and fsGroup would also change the user's volumes.
func (in *injection) volumes() []corev1.Volume {
	ca := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMapCA},
		Items:                []corev1.KeyToPath{{Key: fileCA, Path: fileCA}},
	}}
	if in.options.ControlPlaneCA != "" {
		ca = corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
			Path:     fileCA,
			FieldRef: fieldRef("metadata.annotations['" + mesh.AnnotationControlPlaneCA + "']"),
		}}}}
	}
	volumes := []corev1.Volume{
		{Name: mesh.VolumeIdentity, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(0o644)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
					Audience: mesh.TokenAudience, ExpirationSeconds: new(int64(tokenSeconds)), Path: fileToken,
				}},
				ca,
			},
		}}},
		{Name: volumeWork, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			Medium: corev1.StorageMediumMemory, SizeLimit: new(workSize),
		}}},
	}
	if in.hasExec() {
		volumes = append(volumes, execVolumes...)
	}
	return volumes
}

// drainTime returns the pod's drain time or the default, limited by the pod's grace period.
func (in *injection) drainTime() time.Duration {
	asked, named := in.settings.drainTime, true
	if asked == 0 {
		asked, named = mesh.DefaultDrainTime, false
	}
	left := in.grace() - graceReserve
	if in.form == Container && in.settings.lbHealthPort != 0 {
		left -= in.settings.lbDrainTime // the proxy keeps serving for that long, then drains
	}
	limit := max(left, mesh.MinDrainTime)
	if asked <= limit {
		return asked
	}
	if named {
		in.warn("%s: %s is more than terminationGracePeriodSeconds (%d) allows: the drain gets %s",
			annotationField(mesh.AnnotationDrainTime), asked, int64(in.grace()/time.Second), limit)
	}
	return limit
}

// grace returns the pod's grace period, limited to what the longest drain needs.
func (in *injection) grace() time.Duration {
	seconds := int64(gracePeriod)
	if grace := in.pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		seconds = min(*grace, int64((2*mesh.MaxDrainTime+graceReserve)/time.Second))
	}
	return time.Duration(seconds) * time.Second
}

func securityContext(user int64, capabilities *corev1.Capabilities) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser: new(user), RunAsGroup: new(user),
		RunAsNonRoot:             new(user != 0), // always set, to override the pod's
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             capabilities,
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

var workSize = resource.MustParse("16Mi")

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: fieldRef(path)}}
}

func fieldRef(path string) *corev1.ObjectFieldSelector {
	return &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}
}

func joinPorts(ports []int32) string {
	words := make([]string, len(ports))
	for i, port := range ports {
		words[i] = number(port)
	}
	return strings.Join(words, ",")
}

func number(port int32) string { return strconv.Itoa(int(port)) }

func quote(s string) string { return fmt.Sprintf("%q", s) }
