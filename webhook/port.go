package webhook

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// reservedPorts maps the ports of the sidecar to their purpose.
var reservedPorts = map[int32]string{
	mesh.PortRedirectIn:  "redirection",
	mesh.PortRedirectOut: "redirection",
	mesh.PortReadiness:   "the readiness of the sidecar",
	mesh.PortMetrics:     "the metrics of the sidecar",
}

// ReservedPorts returns the ports that containers of an injected pod must not use, each with its purpose. Pods can
// change the port for Prometheus.
func ReservedPorts() map[int32]string { return maps.Clone(reservedPorts) }

func sortedReserved() []int32 { return slices.Sorted(maps.Keys(reservedPorts)) }

// preparePorts finds the pod's ports, and ports for its probes.
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

// checkReserved returns an error if the pod uses a port of the sidecar: one of the two could not start or would be
// unreachable.
func (in *injection) checkReserved() error {
	var errs []error
	for _, port := range sortedReserved() {
		if by := in.used[port]; by != "" {
			errs = append(errs, fmt.Errorf("%s: port %d is reserved for %s", by, port, reservedPorts[port]))
		}
	}
	return errors.Join(errs...)
}

// usedPorts returns the pod's TCP ports, each with the first field that uses it. It ignores Sonde's own containers, and
// probes and hooks that an earlier injection has rewritten.
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
		if why == "" && asked != 0 && h.host == "" && !in.forLoadBalancers(asked) {
			use(asked, h.field())
		}
	}
	return used
}

// checkFree returns an error if a port is not available as virtual port.
func (in *injection) checkFree(virtual int32) error {
	if use := reservedPorts[virtual]; use != "" {
		return errors.New("reserved for " + use)
	}
	if by := in.used[virtual]; by != "" {
		return errors.New(by + " uses it")
	}
	return nil
}

// choosePort returns the virtual port; 0 if the pod has none, or gets one from its range later. An injected pod keeps
// its port.
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
	return 0, fmt.Errorf("port %d cannot be the virtual probes' port: %w; no port from %d to %d is free (set another one with %s)",
		wanted, taken, mesh.FirstSparePort, mesh.LastSparePort, mesh.AnnotationVirtualProbesPort)
}

// checkEarlierPort returns an error if changes of the pod since its injection conflict with the sidecar's port.
func (in *injection) checkEarlierPort() error {
	port, s := in.earlier.port, in.settings
	switch has := port != 0; {
	case s.probesEnabled != nil && *s.probesEnabled != in.enabled:
		return fmt.Errorf("%s: contradicts %s, which already has %s%d",
			annotationField(s.probesEnabledBy), mesh.ContainerSidecar, mesh.ArgVirtualPort, port)
	case has && s.virtualPort != 0 && s.virtualPort != port:
		return fmt.Errorf("%s: %d: %s already has port %d", annotationField(s.virtualPortBy), s.virtualPort, mesh.ContainerSidecar, port)
	case has:
		if err := in.checkFree(port); err != nil {
			return fmt.Errorf("port %d of the virtual probes in %s is in use: %w", port, mesh.ContainerSidecar, err)
		}
	}
	return nil
}
