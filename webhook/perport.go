package webhook

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Arguments of the sidecar's containers in the per-port mode.
const (
	excludeInboundFlag = "--exclude-inbound-ports"
	redirectProbesFlag = "--redirect-tcp-probes"
)

// perPort reports whether the probes of the pod are answered in the per-port mode.
func (in *injection) perPort() bool { return in.enabled && in.mode == mesh.ProbesPerPort }

// allocate gives the probes of a pod in the per-port mode their ports: the first free one of the range is for all of HTTP, unless the pod
// names one, and each other probe gets the next. Probes of an earlier injection keep theirs.
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
	if in.port == 0 && slices.ContainsFunc(decisions, func(d Decision) bool { return d.Probe != nil && !d.Probe.WantsOwnPort() }) {
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
	allowed := fmt.Sprintf("must have a free port for each probe: this pod needs %d, and the range has %d", need, len(free))
	if len(why) > 0 {
		allowed += " (" + strings.Join(why, "; ") + ")"
	}
	return &mesh.FieldError{Field: annotationField(mesh.AnnotationVirtualProbesPortRange), Value: in.settings.portRange.String(), Allowed: allowed}
}

// takenPorts returns the ports that cannot be given to a probe, and why.
func (in *injection) takenPorts() map[int32]string {
	taken := map[int32]string{}
	for port, by := range in.used {
		taken[port] = by + " has it"
	}
	for _, port := range in.settings.excludeInbound {
		taken[port] = mesh.AnnotationExcludeInboundPorts + " has it"
	}
	if in.port != 0 {
		taken[in.port] = "it is the port of HTTP probes"
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

// checkPerPort returns an error if the ports of a pod in the per-port mode cannot be used: those of an earlier injection may be in use since.
func (in *injection) checkPerPort() error {
	r := in.settings.portRange
	for _, port := range sortedReserved() {
		if r.first <= port && port <= r.last {
			return &mesh.FieldError{
				Field: annotationField(mesh.AnnotationVirtualProbesPortRange), Value: r.String(),
				Allowed: fmt.Sprintf("must not have %d, which is kept for %s", port, reservedPorts[port]),
			}
		}
	}
	if in.earlier == nil {
		return nil
	}
	for i := range in.earlier.table {
		p := &in.earlier.table[i]
		if by := in.used[p.VirtualPort]; p.WantsOwnPort() && by != "" {
			return fmt.Errorf("port %d of the %s probe of %s, which %s has already, is in use: %s has it",
				p.VirtualPort, p.Type, p.Container, mesh.ContainerSidecar, by)
		}
	}
	return nil
}

// ownPortOf returns the entry of the probe table for a TCP or gRPC probe that an earlier injection has rewritten, nil if there is none.
func (in *injection) ownPortOf(h handler) *mesh.Probe {
	port, why := h.port()
	if in.earlier == nil || why != "" {
		return nil
	}
	i := slices.IndexFunc(in.earlier.table, func(p mesh.Probe) bool {
		return p.VirtualPort == port && p.Container == h.container.Name && p.Type == h.kind && p.HandlerName() == h.asks.HandlerName()
	})
	if i < 0 {
		return nil
	}
	return &in.earlier.table[i]
}

// rewritePort makes a TCP or gRPC probe ask its own port.
func (in *injection) rewritePort(h handler, p mesh.Probe) {
	in.patch.add(h.path()+"/"+p.HandlerName()+"/port", p.VirtualPort)
	in.removeNewField(h)
}

// agentPorts returns the ports that must reach the agent as they are: those for HTTP and gRPC probes.
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

// tcpProbes returns the ports that the kernel redirects, as kuma-init takes them.
func (in *injection) tcpProbes() string {
	var pairs []string
	for _, p := range in.table {
		if p.Redirected() {
			pairs = append(pairs, number(p.VirtualPort)+":"+number(p.Port()))
		}
	}
	return strings.Join(pairs, ",")
}

// setArguments updates the ports in the arguments of an earlier injection.
func (in *injection) setArguments() {
	initContainers := in.pod.Spec.InitContainers
	if at := podspec.Index(initContainers, mesh.ContainerInit); at >= 0 {
		in.setArgument(pathInitContainers, at, &initContainers[at], excludeInboundFlag, joinPorts(in.excludedInbound()))
		in.setArgument(pathInitContainers, at, &initContainers[at], redirectProbesFlag, in.tcpProbes())
	}
	list, containers := in.sidecarList()
	at := podspec.Index(containers, mesh.ContainerSidecar)
	in.setArgument(list, at, &containers[at], mesh.ArgVirtualPort, number(in.port))
}

// setArgument sets the value of a flag that is there: behind its "=", or in the argument after it.
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
