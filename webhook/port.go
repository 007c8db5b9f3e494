package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Ports that are tried in turn where the usual one is in use.
const (
	firstSpare = 9001
	lastSpare  = 9020
)

// reserved returns what a sidecar uses a port for, "" if it does not.
func reserved(port int32) string {
	switch port {
	case mesh.PortRedirectIn, mesh.PortRedirectOut:
		return "redirection"
	case mesh.PortReadiness:
		return "the readiness of the sidecar"
	case mesh.PortMetrics:
		return "the metrics of the sidecar"
	}
	return ""
}

// checkPorts rejects a pod whose containers need what the sidecar has: one of the two could not start, or would not be
// reached.
func checkPorts(pod *corev1.Pod) error {
	for c, port := range declaredPorts(pod) {
		if use := reserved(port); use != "" {
			return fmt.Errorf("containers[%s].ports: port %d is kept for %s", c, port, use)
		}
	}
	return nil
}

// declaredPorts yields container and port of all TCP ports of containers but ours.
func declaredPorts(pod *corev1.Pod) func(func(string, int32) bool) {
	return func(yield func(string, int32) bool) {
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for _, c := range containers {
				for _, p := range c.Ports {
					tcp := p.Protocol == "" || p.Protocol == corev1.ProtocolTCP
					if tcp && !isOurs(c.Name) && !yield(c.Name, p.ContainerPort) {
						return
					}
				}
			}
		}
	}
}

// clash returns what else uses a virtual port, "" if nothing does.
func (in *injection) clash(virtual int32) string {
	if use := reserved(virtual); use != "" {
		return "it is kept for " + use
	}
	for c, port := range declaredPorts(in.pod) {
		if port == virtual {
			return "container " + c + " has it"
		}
	}
	for _, h := range handlersOf(in.pod) {
		port, why := h.port()
		if p := in.rewritten(h); p != nil {
			port = p.Port()
		}
		if why == "" && port == virtual && h.host() == "" {
			return h.field() + " asks it"
		}
	}
	return ""
}

// choosePort returns the virtual port, 0 for a pod that wants its probes left alone. A pod that has a sidecar keeps what
// that has.
func (in *injection) choosePort() (int32, error) {
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
