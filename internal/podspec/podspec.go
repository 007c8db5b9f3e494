// Package podspec finds the sidecar, and other containers, in the specs of pods, and says what has made a pod and whether it has ended.
package podspec

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Container returns the container or init container of that name, nil if there is none. It is the one in spec.
func Container(spec *corev1.PodSpec, name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		if i := Index(containers, name); i >= 0 {
			return &containers[i]
		}
	}
	return nil
}

// Index returns the index of the container of that name, -1 if there is none.
func Index(containers []corev1.Container, name string) int {
	return slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
}

// PortArgument returns the port that a container has by an argument such as mesh.ArgLBHealthPort: what follows the argument, or a host and a colon after it.
// It is 0 if there is none, or one that the agent refuses.
func PortArgument[P int32 | uint32](c *corev1.Container, argument string) P {
	for _, arg := range c.Args {
		if value, ok := strings.CutPrefix(arg, argument); ok {
			port, _ := mesh.ParsePort[P](value[strings.LastIndexByte(value, ':')+1:])
			return port
		}
	}
	return 0
}

// IsNativeSidecar reports whether an init container runs on beside the containers.
func IsNativeSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Ended reports whether all containers of a pod have ended for good.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Condition returns a condition of a pod, nil if it has none of that type.
func Condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == of {
			return c
		}
	}
	return nil
}

// RestartingAll returns the condition by which the kubelet restarts all containers of a pod at once (KEP-5532), nil if it does not. A pod that is Ready
// since does not: a kubelet that is downgraded meanwhile leaves the condition as it is.
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

// Has reports whether a condition of a pod has a status. One that it has not is Unknown.
func Has(pod *corev1.Pod, of corev1.PodConditionType, status corev1.ConditionStatus) bool {
	if c := Condition(pod, of); c != nil {
		return c.Status == status
	}
	return status == corev1.ConditionUnknown
}

// DeploymentOf returns the Deployment whose ReplicaSet has made a pod: the ReplicaSet's name without the hash of the pod template that ends it. It returns
// false for a ReplicaSet that no Deployment has made.
// Source: kubernetes pkg/controller/deployment/sync.go, getNewReplicaSet.
func DeploymentOf(replicaSet string, pod *corev1.Pod) (name string, is bool) {
	hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if hash == "" {
		return "", false
	}
	return strings.CutSuffix(replicaSet, "-"+hash)
}

// IsInjected reports whether Sonde has injected a pod. Other meshes have containers of the same names: the volume with the sidecar's identity
// has a name of our own.
func IsInjected(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mesh.VolumeIdentity })
}

// Unsupported returns why no sidecar can work in a pod, "" if one can. The chart's matchConditions keep the same pods from the webhook.
func Unsupported(spec *corev1.PodSpec) string {
	switch {
	case spec.HostNetwork:
		return "spec.hostNetwork: redirection would be that of the whole node"
	case spec.OS != nil && spec.OS.Name == corev1.Windows:
		return "spec.os: there is no sidecar for Windows"
	case spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		return "spec.nodeSelector: there is no sidecar for Windows"
	}
	return ""
}

// pullReasons are those of a container that waits for its image.
// Source: kubernetes pkg/kubelet/images/types.go.
var pullReasons = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}

// unstartable are reasons of a waiting container that has its image.
var unstartable = []string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"}

// Unstartable reports whether the kubelet cannot create or start a container that waits for that reason.
func Unstartable(reason string) bool { return slices.Contains(unstartable, reason) }

// WaitsForImage reports whether a container waits for that reason since the kubelet cannot get its image.
func WaitsForImage(reason string) bool { return slices.Contains(pullReasons, reason) }
