package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// redirectProbesFlag is kuma-init's flag for ports that the kernel redirects in per-port mode.
const redirectProbesFlag = "--redirect-tcp-probes"

// perPort reports whether the pod's probes are in per-port mode.
func (in *injection) perPort() bool { return in.enabled && in.mode == mesh.ProbesPerPort }

// allocate assigns ports to the probes of a pod in per-port mode: the pod's port, or the first free one of the range,
// to all HTTP probes, and the next ports to the other probes. Probes of an earlier injection keep theirs.
func (in *injection) allocate(decisions []Decision) error {
	taken := in.takenPorts()
	var free []int32
	var why []string
	for port := in.settings.portRange.first; port <= in.settings.portRange.last; port++ {
		if by := taken[port]; by != "" {
			why = append(why, number(port)+" is not: "+by)
		} else {
			free = append(free, port)
		}
	}
	need := 0
	next := func() (port int32) {
		if need++; need <= len(free) {
			port = free[need-1]
		}
		return port
	}
	if in.port == 0 &&
		slices.ContainsFunc(decisions, func(d Decision) bool { return d.Probe != nil && !d.Probe.WantsOwnPort() }) {
		in.port = next()
	}
	for _, d := range decisions {
		if p := d.Probe; p != nil && p.WantsOwnPort() && p.VirtualPort == 0 {
			p.VirtualPort = next()
		}
	}
	if need <= len(free) {
		return nil
	}
	allowed := fmt.Sprintf("must have a free port for each probe: this pod needs %d, the range has %d", need, len(free))
	if len(why) > 0 {
		allowed += " (" + strings.Join(why, "; ") + ")"
	}
	return &mesh.FieldError{
		Field: annotationField(mesh.AnnotationVirtualProbesPortRange), Value: in.settings.portRange.String(),
		Allowed: allowed,
	}
}

// takenPorts returns the ports that are not available for probes, and why.
func (in *injection) takenPorts() map[int32]string {
	taken := map[int32]string{}
	for port, by := range in.used {
		taken[port] = by + " has it"
	}
	for _, port := range in.settings.excludeInbound {
		taken[port] = mesh.AnnotationExcludeInboundPorts + " has it"
	}
	if in.port != 0 {
		taken[in.port] = "it is the port for HTTP probes"
	}
	if in.earlier != nil {
		for i := range in.earlier.table {
			if p := &in.earlier.table[i]; p.WantsOwnPort() {
				taken[p.VirtualPort] = "the " + string(p.Type) + " probe of " + p.Container + " has it"
			}
		}
	}
	return taken
}

// checkPerPort returns an error if a pod in per-port mode cannot use its ports. Another container may have been added
// with a port of the earlier injection.
func (in *injection) checkPerPort() error {
	r := in.settings.portRange
	for _, port := range sortedReserved() {
		if r.first <= port && port <= r.last {
			return &mesh.FieldError{
				Field: annotationField(mesh.AnnotationVirtualProbesPortRange), Value: r.String(),
				Allowed: fmt.Sprintf("must not contain %d, which is reserved for %s", port, reservedPorts[port]),
			}
		}
	}
	if in.earlier == nil {
		return nil
	}
	for i := range in.earlier.table {
		p := &in.earlier.table[i]
		if by := in.used[p.VirtualPort]; p.WantsOwnPort() && by != "" {
			return fmt.Errorf("port %d of the %s probe of %s in %s is in use by %s",
				p.VirtualPort, p.Type, p.Container, mesh.ContainerSidecar, by)
		}
	}
	return nil
}

// ownPortOf returns the probe table's entry for a TCP or gRPC probe that an earlier injection has rewritten, or nil.
func (in *injection) ownPortOf(h handler) *mesh.Probe {
	port, why := h.port()
	if in.earlier == nil || why != "" {
		return nil
	}
	i := slices.IndexFunc(in.earlier.table, func(p mesh.Probe) bool {
		return p.VirtualPort == port && p.Container == h.container.Name && p.Type == h.kind &&
			p.HandlerName() == h.asks.HandlerName()
	})
	if i < 0 {
		return nil
	}
	return &in.earlier.table[i]
}

// rewritePort changes a TCP or gRPC probe to its own port.
func (in *injection) rewritePort(h handler, p mesh.Probe) {
	in.patch.add(h.path()+"/"+p.HandlerName()+"/port", p.VirtualPort)
	in.removeNewField(h)
}

// agentPorts returns the ports for HTTP and gRPC probes, which must reach the agent without redirection.
func (in *injection) agentPorts() (ports []int32) {
	if in.port != 0 {
		ports = append(ports, in.port)
	}
	for _, p := range in.table {
		if p.VirtualPort != 0 && !p.Redirected() {
			ports = append(ports, p.VirtualPort)
		}
	}
	return ports
}

// tcpProbes returns the ports that the kernel redirects.
func (in *injection) tcpProbes() (probes []mesh.RedirectedProbe) {
	for _, p := range in.table {
		if p.Redirected() {
			probes = append(probes, mesh.RedirectedProbe{Port: p.VirtualPort, Target: p.Port()})
		}
	}
	return probes
}

// joinProbes formats probes for kuma-init.
func joinProbes(probes []mesh.RedirectedProbe) string {
	var pairs []string
	for _, p := range probes {
		pairs = append(pairs, p.String())
	}
	return strings.Join(pairs, ",")
}

// setArguments updates the ports in the arguments of an earlier injection.
func (in *injection) setArguments() {
	initContainers := in.pod.Spec.InitContainers
	if at := podspec.Index(initContainers, mesh.ContainerInit); at >= 0 {
		in.setArgument(pathInitContainers, at, &initContainers[at], mesh.ArgExcludeInbound, joinPorts(in.excludedInbound()))
		in.setArgument(pathInitContainers, at, &initContainers[at], redirectProbesFlag, joinProbes(in.tcpProbes()))
	}
	list, containers := in.sidecarList()
	at := podspec.Index(containers, mesh.ContainerSidecar)
	in.setArgument(list, at, &containers[at], mesh.ArgVirtualPort, number(in.port))
}

// setArgument sets the value of an existing flag: after its "=", or in the next argument.
func (in *injection) setArgument(list string, at int, c *corev1.Container, flag, value string) {
	i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if strings.HasSuffix(flag, "=") {
		value = flag + value
	} else {
		i++
	}
	if i < 0 || i >= len(c.Args) || c.Args[i] == value {
		return
	}
	in.patch.replace(fmt.Sprintf("%s/%d/args/%d", list, at, i), value)
}
