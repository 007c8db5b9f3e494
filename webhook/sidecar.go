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

// Fixed values of our containers and volumes.
const (
	volumeWork    = "sonde-work"
	mountIdentity = "/var/run/secrets/" + mesh.Group
	mountWork     = "/var/run/sonde"
	workDirectory = mountWork + "/agent" // not the mount itself, which all users may enter: it holds secrets
	fileToken     = "token"
	fileCA        = "ca.crt"
	configMapCA   = "sonde-ca"
	tokenSeconds  = 3600
	// gracePeriod is the default of terminationGracePeriodSeconds.
	gracePeriod = 30
	// graceReserve is the part of the grace period after the drain, in which Envoy and the agent end.
	graceReserve = 5 * time.Second
)

// initContainer returns kuma-init, which sets up redirection. It runs as root, since otherwise the capability would not be
// in its effective set.
func (in *injection) initContainer() corev1.Container {
	c := corev1.Container{
		Name:            mesh.ContainerInit,
		Image:           in.options.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{mesh.AgentProgram, "install", "transparent-proxy"},
		Args: []string{
			"--redirect-outbound-port", strconv.Itoa(mesh.PortRedirectOut),
			"--redirect-inbound=true",
			"--redirect-inbound-port", strconv.Itoa(mesh.PortRedirectIn),
			"--kuma-dp-uid", strconv.Itoa(mesh.SidecarUser),
			excludeInboundFlag, joinPorts(in.excludedInbound()),
			"--exclude-outbound-ports", joinPorts(in.settings.excludeOutbound),
			"--verbose",
			"--ip-family-mode", "dualstack",
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: securityContext(0, &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"},
		}),
		Resources: cloneResources(&in.resources),
	}
	if in.metricsPort != 0 {
		c.Args = append(c.Args, metricsPortFlag, number(in.metricsPort))
	}
	if in.hasGuarded() {
		c.Args = append(c.Args, guardedPortFlag+number(in.port))
	}
	if in.perPort() {
		c.Args = append(c.Args, redirectProbesFlag, in.tcpProbes())
	}
	return c
}

// excludedInbound returns the ports that are not redirected: those of probes and load balancers, and then the user's.
func (in *injection) excludedInbound() []int32 {
	ports := in.agentPorts()
	if lb := in.settings.lbHealthPort; lb != 0 {
		ports = append(ports, lb)
	}
	return slices.Concat(ports, slices.DeleteFunc(slices.Clone(in.settings.excludeInbound), func(p int32) bool {
		return slices.Contains(ports, p) || p == in.metricsPort // which has a flag of its own
	}))
}

// sidecar returns kuma-sidecar, which runs the agent and Envoy. The containers after it start when it is ready
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
			"--last-to-end=" + strconv.FormatBool(in.form == Native), // a native sidecar is told to end after all other containers
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
		// Nothing listens on this port. Only a redirected connection gets an answer, so a pod that has lost its redirection
		// is not ready. One late answer is none: on a node that is short of CPU all pods would flap.
		ReadinessProbe:           readiness(3),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError, // says why the agent has ended
		// The preStop hooks of all containers are called together, when the pod begins to end. The sidecar itself is told to end
		// last: until then clients outside the mesh would keep their connections to an Envoy whose application has gone.
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
	if in.perPort() {
		c.Args = append(c.Args, mesh.ArgProbesMode+string(in.mode))
	}
	c.Args = slices.Concat(c.Args, in.loadBalancerArgs(), in.metricsArgs())
	if in.hasGuarded() {
		c.LivenessProbe = in.alive()
	}
	if in.form == Native {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		c.StartupProbe = readiness(startAttempts)
		return c
	}
	// Not httpGet: it would be refused while the agent starts, and then the kubelet kills the container.
	c.Lifecycle.PostStart = &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
		Command: []string{mesh.AgentProgram, "wait", "--timeout=5s", "--start-anyway"},
	}}
	return c
}

// startAttempts is how many seconds a native sidecar has to get ready, until the kubelet restarts it: longer than an outage of the
// control plane usually takes.
const startAttempts = 600

// readiness asks the agent through Envoy's redirection, each second.
func readiness(failureThreshold int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: mesh.PathReady, Port: intstr.FromInt32(mesh.PortReadiness),
		}},
		// With a timeout of a second, idle pods flap on a busy node.
		PeriodSeconds: 1, TimeoutSeconds: 3, FailureThreshold: failureThreshold,
	}
}

// volumes returns the work directory, in memory, and a volume with the token and the control plane's CA. The token has mode
// 0644: in a pod with several users root owns it, and fsGroup would change the user's volumes, too.
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
	return []corev1.Volume{
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
}

// drainTime returns the drain time that the pod asks for, or the default, limited by the pod's grace period.
func (in *injection) drainTime() time.Duration {
	asked, named := in.settings.drainTime, true
	if asked == 0 {
		asked, named = mesh.DefaultDrainTime, false
	}
	left := in.grace() - graceReserve
	if in.form == Container && in.settings.lbHealthPort != 0 {
		left -= in.settings.lbDrainTime // it serves on for that long, and then drains
	}
	limit := max(left, mesh.MinDrainTime)
	if asked <= limit {
		return asked
	}
	if named {
		in.warn("%s: %s is more than terminationGracePeriodSeconds (%d) leaves: the drain has %s",
			annotationField(mesh.AnnotationDrainTime), asked, int64(in.grace()/time.Second), limit)
	}
	return limit
}

// grace returns the grace period of the pod, or if it is shorter the longest that any drain needs.
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
