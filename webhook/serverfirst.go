package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// serverFirst maps ports to protocols in which the server sends first. The first part of a port's name may also be such
// a protocol.
var serverFirst = map[int32]string{
	21: "ftp", 22: "ssh", 25: "smtp", 110: "pop3", 143: "imap", 587: "submission", 3306: "mysql",
}

// serverFirstNames are other names of ports with such a protocol.
var serverFirstNames = []string{"sftp", "mariadb"}

// warnServerFirst warns of ports at which callers without a sidecar wait, because Envoy first waits for the caller to
// send data.
func (in *injection) warnServerFirst() {
	if in.gateway || in.meshMode() != mesh.ModePermissive {
		return
	}
	told := slices.Concat(in.settings.serverFirst, in.settings.excludeInbound)
	for _, containers := range [][]corev1.Container{in.pod.Spec.InitContainers, in.pod.Spec.Containers} {
		for _, c := range containers {
			var found []string
			for _, p := range c.Ports {
				if protocol := serverFirstOf(&p); protocol != "" && !isOurs(c.Name) && !slices.Contains(told, p.ContainerPort) {
					found = append(found, fmt.Sprintf("%d (%s)", p.ContainerPort, protocol))
				}
			}
			if len(found) > 0 {
				in.warn("containers[%s].ports: %s: the server sends first: while mesh %q is PERMISSIVE, callers without a sidecar get the first byte "+
					"after 1 s. The ports in %s have no mTLS, and no wait, until the mesh is STRICT", c.Name, mesh.Few(found), in.mesh, mesh.AnnotationServerFirstPorts)
			}
		}
	}
}

// serverFirstOf returns the protocol of a port if its server sends first, otherwise "".
func serverFirstOf(p *corev1.ContainerPort) string {
	if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
		return ""
	}
	name, _, _ := strings.Cut(p.Name, "-")
	if slices.Contains(serverFirstNames, name) {
		return name
	}
	for _, protocol := range serverFirst {
		if name == protocol {
			return name
		}
	}
	return serverFirst[p.ContainerPort]
}
