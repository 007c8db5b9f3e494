package webhook

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Ports that are tried in turn where the usual one is in use.
const (
	firstSpare = 9001
	lastSpare  = 9020
)

// reserved are the ports of a sidecar, and what it uses them for.
var reserved = map[int32]string{
	mesh.PortRedirectIn:  "redirection",
	mesh.PortRedirectOut: "redirection",
	mesh.PortReadiness:   "the readiness of the sidecar",
	mesh.PortMetrics:     "the metrics of the sidecar",
}

// checkReserved rejects a pod that needs a port which the sidecar has: one of the two could not start, or would not be
// reached.
func (in *injection) checkReserved() error {
	for _, port := range slices.Sorted(maps.Keys(reserved)) {
		if by := in.user(port); by != "" {
			return fmt.Errorf("%s: port %d is kept for %s", by, port, reserved[port])
		}
	}
	return nil
}

// user returns the first field of the pod that has a TCP port, "" for a port that none has. What our containers have does
// not count, and neither does what we have written into others.
func (in *injection) user(port int32) string {
	for _, containers := range [][]corev1.Container{in.pod.Spec.InitContainers, in.pod.Spec.Containers} {
		for _, c := range containers {
			declares := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
				return p.ContainerPort == port && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP)
			})
			if declares && !isOurs(c.Name) {
				return "containers[" + c.Name + "].ports"
			}
		}
	}
	for _, h := range handlersOf(in.pod) {
		asked, why := h.port()
		if p := in.rewritten(h); p != nil {
			asked = p.Port()
		}
		if why == "" && asked == port && h.host() == "" {
			return h.field()
		}
	}
	return ""
}

// clash returns what else uses a virtual port, "" if nothing does.
func (in *injection) clash(virtual int32) string {
	if use := reserved[virtual]; use != "" {
		return "it is kept for " + use
	}
	if by := in.user(virtual); by != "" {
		return by + " has it"
	}
	return ""
}

// choosePort returns the virtual port, 0 for a pod that wants its probes left alone. A pod that has a sidecar keeps what
// that has.
func (in *injection) choosePort() (int32, error) {
	if err := in.checkReserved(); err != nil {
		return 0, err
	}
	if in.earlier != nil {
		return in.earlier.port, in.checkEarlierPort()
	}
	s := in.settings
	if s.probes != nil && !*s.probes {
		return 0, nil
	}
	wanted := in.options.VirtualProbesPort
	if s.port != 0 {
		wanted = s.port
	}
	why := in.clash(wanted)
	if why == "" {
		return wanted, nil
	}
	if s.port != 0 {
		return 0, fmt.Errorf("%s: port %d cannot be the virtual probes' port: %s", annotation(mesh.AnnotationVirtualProbesPort), wanted, why)
	}
	for port := int32(firstSpare); port <= lastSpare; port++ {
		if in.clash(port) == "" {
			return port, nil
		}
	}
	return 0, fmt.Errorf("port %d cannot be the virtual probes' port: %s; nor is one from %d to %d free (%s takes another)",
		wanted, why, firstSpare, lastSpare, mesh.AnnotationVirtualProbesPort)
}

// checkEarlierPort rejects a pod that has changed since in a way that its sidecar cannot follow.
func (in *injection) checkEarlierPort() error {
	port, s := in.earlier.port, in.settings
	switch has := port != 0; {
	case s.probes != nil && *s.probes != has:
		return fmt.Errorf("%s: %s has --virtual-probes-port=%d already, which says otherwise",
			annotation(mesh.AnnotationVirtualProbes), mesh.ContainerSidecar, port)
	case has && s.port != 0 && s.port != port:
		return fmt.Errorf("%s: %d: %s has port %d already", annotation(mesh.AnnotationVirtualProbesPort), s.port, mesh.ContainerSidecar, port)
	case has:
		if why := in.clash(port); why != "" {
			return fmt.Errorf("port %d of the virtual probes, which %s has already, is in use: %s", port, mesh.ContainerSidecar, why)
		}
	}
	return nil
}
