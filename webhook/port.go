package webhook

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// reservedPorts are the ports that the sidecar uses, and for what.
var reservedPorts = map[int32]string{
	mesh.PortRedirectIn:  "redirection",
	mesh.PortRedirectOut: "redirection",
	mesh.PortReadiness:   "the readiness of the sidecar",
	mesh.PortMetrics:     "the metrics of the sidecar",
}

// ReservedPorts returns the ports that no container of an injected pod may have, each with what it is kept for. That of Prometheus can be another one.
func ReservedPorts() map[int32]string { return maps.Clone(reservedPorts) }

func sortedReserved() []int32 { return slices.Sorted(maps.Keys(reservedPorts)) }

// preparePorts finds out which ports the pod uses, and which may be those of its probes.
func (in *injection) preparePorts() (err error) {
	in.used = in.usedPorts()
	errs := []error{in.checkReserved(), in.reserveMetricsPort(), in.reserveLBPort()}
	in.port, err = in.choosePort()
	errs = append(errs, err)
	if in.perPort() {
		errs = append(errs, in.checkPerPort())
	}
	return errors.Join(errs...)
}

// checkReserved returns an error if the pod uses a port of the sidecar: one of the two could not start, or could not be
// reached.
func (in *injection) checkReserved() error {
	var errs []error
	for _, port := range sortedReserved() {
		if by := in.used[port]; by != "" {
			errs = append(errs, fmt.Errorf("%s: port %d is kept for %s", by, port, reservedPorts[port]))
		}
	}
	return errors.Join(errs...)
}

// usedPorts returns the TCP ports that the pod uses, each with the first field that uses it. Our own containers do not count,
// and neither do probes and hooks that an earlier injection has rewritten.
func (in *injection) usedPorts() map[int32]string {
	used := map[int32]string{}
	use := func(port int32, field string) {
		if _, taken := used[port]; !taken {
			used[port] = field
		}
	}
	for _, containers := range [][]corev1.Container{in.pod.Spec.InitContainers, in.pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			for _, p := range c.Ports {
				if !isOurs(c.Name) && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) {
					use(p.ContainerPort, "containers["+c.Name+"].ports")
				}
			}
		}
	}
	for _, h := range in.handlers {
		asked, why := h.port()
		if p := in.rewritten(h); p != nil {
			asked = p.Port()
		}
		if why == "" && h.host == "" && !in.forLoadBalancers(asked) {
			use(asked, h.field())
		}
	}
	return used
}

// checkFree returns an error if a port cannot be the virtual port.
func (in *injection) checkFree(virtual int32) error {
	if use := reservedPorts[virtual]; use != "" {
		return errors.New("it is kept for " + use)
	}
	if by := in.used[virtual]; by != "" {
		return errors.New(by + " has it")
	}
	return nil
}

// choosePort returns the virtual port; 0 if the pod has none, or gets one of its range later. A pod that has a sidecar keeps its port.
func (in *injection) choosePort() (int32, error) {
	if in.earlier != nil {
		return in.earlier.port, in.checkEarlierPort()
	}
	s := in.settings
	wanted := in.options.VirtualProbesPort
	switch {
	case !in.enabled, in.mode == mesh.ProbesPerPort && s.virtualPort == 0:
		return 0, nil
	case s.virtualPort != 0:
		wanted = s.virtualPort
	}
	taken := in.checkFree(wanted)
	if taken == nil {
		return wanted, nil
	}
	if s.virtualPort != 0 {
		return 0, fmt.Errorf("%s: port %d cannot be the virtual probes' port: %w", annotationField(s.virtualPortBy), wanted, taken)
	}
	for port := int32(mesh.FirstSparePort); port <= mesh.LastSparePort; port++ {
		if in.checkFree(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("port %d cannot be the virtual probes' port: %w; nor is one from %d to %d free (%s takes another)",
		wanted, taken, mesh.FirstSparePort, mesh.LastSparePort, mesh.AnnotationVirtualProbesPort)
}

// checkEarlierPort returns an error if the pod has changed since its injection in a way that its sidecar does not support.
func (in *injection) checkEarlierPort() error {
	port, s := in.earlier.port, in.settings
	switch has := port != 0; {
	case s.probesEnabled != nil && *s.probesEnabled != in.enabled:
		return fmt.Errorf("%s: %s has %s%d already, which says otherwise",
			annotationField(s.probesEnabledBy), mesh.ContainerSidecar, mesh.ArgVirtualPort, port)
	case has && s.virtualPort != 0 && s.virtualPort != port:
		return fmt.Errorf("%s: %d: %s has port %d already", annotationField(s.virtualPortBy), s.virtualPort, mesh.ContainerSidecar, port)
	case has:
		if err := in.checkFree(port); err != nil {
			return fmt.Errorf("port %d of the virtual probes, which %s has already, is in use: %w", port, mesh.ContainerSidecar, err)
		}
	}
	return nil
}
