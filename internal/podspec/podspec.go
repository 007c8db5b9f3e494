// Package podspec finds the sidecar and other containers in pod specs and the owner of a pod, and detects ended pods.
package podspec

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Container returns the container or init container with a name, or nil.
func Container(spec *corev1.PodSpec, name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		if i := Index(containers, name); i >= 0 {
			return &containers[i]
		}
	}
	return nil
}

// Index returns the index of the container with a name, or -1.
func Index(containers []corev1.Container, name string) int {
	return slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
}

// PortArgument returns the port in a container's argument such as mesh.ArgLBHealthPort, with or without a host and
// colon before it. It returns 0 if the argument is missing, or if the agent would reject it.
func PortArgument[P int32 | uint32](c *corev1.Container, argument string) P {
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, argument); ok {
			port, _ := mesh.ParsePort[P](value[strings.LastIndexByte(value, ':')+1:])
			return port
		}
	}
	return 0
}

// IsNativeSidecar reports whether an init container keeps running beside the containers.
func IsNativeSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Ended reports whether all containers of a pod have ended and will not restart.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Condition returns a condition of a pod, or nil.
func Condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == of {
			return c
		}
	}
	return nil
}

// RestartingAll returns the condition under which the kubelet restarts all containers of a pod at once (KEP-5532), or
// nil. A pod that has been Ready since is not restarting: a kubelet that was downgraded meanwhile leaves the condition
// unchanged.
func RestartingAll(pod *corev1.Pod) *corev1.PodCondition {
	c, ready := Condition(pod, corev1.AllContainersRestarting), Condition(pod, corev1.PodReady)
	if c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	if ready != nil && ready.Status == corev1.ConditionTrue && ready.LastTransitionTime.After(c.LastTransitionTime.Time) {
		return nil
	}
	return c
}

// Has reports whether a condition of a pod has a status. A missing condition is Unknown.
func Has(pod *corev1.Pod, of corev1.PodConditionType, status corev1.ConditionStatus) bool {
	if c := Condition(pod, of); c != nil {
		return c.Status == status
	}
	return status == corev1.ConditionUnknown
}

// DeploymentOf returns the Deployment that owns a pod's ReplicaSet: the ReplicaSet's name without the pod template hash
// at its end. It returns false for a ReplicaSet without a Deployment.
// Source: kubernetes pkg/controller/deployment/sync.go, getNewReplicaSet.
func DeploymentOf(replicaSet string, pod *corev1.Pod) (name string, is bool) {
	hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if hash == "" {
		return "", false
	}
	return strings.CutSuffix(replicaSet, "-"+hash)
}

// IsInjected reports whether Sonde has injected a pod. It looks for the identity volume, since only Sonde uses its
// name, whereas other meshes use the same container names.
func IsInjected(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mesh.VolumeIdentity })
}

// IsGateway reports whether Sonde has injected a pod whose incoming connections are not redirected. It reads the
// injected containers, since the annotation may have changed later.
func IsGateway(spec *corev1.PodSpec) bool {
	if !IsInjected(spec) {
		return false
	}
	if text, ok := RedirectionText(spec); ok {
		r, err := mesh.ParseRedirection(text)
		return err == nil && r.OutboundOnly
	}
	first := Container(spec, mesh.ContainerInit)
	return first != nil && slices.Contains(first.Args, mesh.ArgRedirectInbound+"false")
}

// RedirectionText returns the mesh.Redirection of a pod whose connections the CNI plugin redirects, and false for any
// other pod. It reads an environment variable of the native sidecar, which never changes.
func RedirectionText(spec *corev1.PodSpec) (text string, ok bool) {
	at := Index(spec.InitContainers, mesh.ContainerSidecar)
	if at < 0 || !IsInjected(spec) || Index(spec.InitContainers, mesh.ContainerInit) >= 0 {
		return "", false
	}
	for _, v := range spec.InitContainers[at].Env {
		if v.Name == mesh.EnvRedirection {
			return v.Value, true
		}
	}
	return "", false
}

// ExcludedInbound returns the ports of an injected pod whose incoming connections are not redirected: those in the
// annotation when the pod was injected, and the agent's own. It reads the injected containers, as IsGateway does.
func ExcludedInbound(spec *corev1.PodSpec) []uint32 {
	if text, ok := RedirectionText(spec); ok {
		r, _ := mesh.ParseRedirection(text) // the CNI plugin has rejected invalid values
		ports := make([]uint32, 0, len(r.ExcludeInboundPorts))
		for _, port := range r.ExcludeInboundPorts {
			ports = append(ports, uint32(port))
		}
		return ports
	}
	first := Container(spec, mesh.ContainerInit)
	if first == nil {
		return nil
	}
	at := slices.Index(first.Args, mesh.ArgExcludeInbound)
	if at < 0 || at+1 == len(first.Args) {
		return nil
	}
	ports, _ := mesh.ParsePorts[uint32](first.Args[at+1]) // kuma-init has rejected invalid values
	return ports
}

// Unsupported returns why no sidecar can work in a pod, or "". The chart's matchConditions keep the same pods from the
// webhook.
func Unsupported(spec *corev1.PodSpec) string {
	switch {
	case spec.HostNetwork:
		return "spec.hostNetwork: redirection would apply to the whole node"
	case spec.OS != nil && spec.OS.Name == corev1.Windows:
		return "spec.os: there is no sidecar for Windows"
	case spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		return "spec.nodeSelector: there is no sidecar for Windows"
	}
	return ""
}

// pullReasons are the reasons of a container that waits for its image. Source: kubernetes pkg/kubelet/images/types.go.
var pullReasons = []string{
	"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
	"RegistryUnavailable", "SignatureValidationFailed",
}

// unstartable are reasons of a waiting container that has its image.
var unstartable = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}

// Unstartable reports whether a waiting container's reason means that the kubelet cannot create or start it.
func Unstartable(reason string) bool { return slices.Contains(unstartable, reason) }

// WaitsForImage reports whether a waiting container's reason means that the kubelet cannot get its image.
func WaitsForImage(reason string) bool { return slices.Contains(pullReasons, reason) }
