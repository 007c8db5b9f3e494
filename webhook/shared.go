package webhook

import (
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// warnSharedUser warns of containers that run as the sidecar's user, since redirection recognises the sidecar by its
// user.
func (in *injection) warnSharedUser() {
	var ofPod *int64
	if c := in.pod.Spec.SecurityContext; c != nil {
		ofPod = c.RunAsUser
	}
	for _, c := range slices.Concat(in.pod.Spec.InitContainers, in.pod.Spec.Containers) {
		user := ofPod
		if c.SecurityContext != nil && c.SecurityContext.RunAsUser != nil {
			user = c.SecurityContext.RunAsUser
		}
		if user != nil && *user == mesh.SidecarUser && !isOurs(c.Name) {
			in.warn("containers[%s]: user %d is reserved for %s: connections of this container are not redirected", c.Name, mesh.SidecarUser, mesh.ContainerSidecar)
		}
	}
}
