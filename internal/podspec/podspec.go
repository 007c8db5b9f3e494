// Package podspec finds the sidecar, and other containers, in the specs of pods.
package podspec

import (
	"slices"

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

// IsNativeSidecar reports whether an init container runs on beside the containers.
func IsNativeSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// IsInjected reports whether Sonde has injected a pod. Other meshes have containers of the same names: the volume with the sidecar's identity
// has a name of our own.
func IsInjected(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == mesh.VolumeIdentity })
}
