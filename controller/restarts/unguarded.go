package restarts

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// why a liveness probe of a guarded pod is not guarded.
type why int

const (
	whyExec why = iota
	whyPerPortTCP
	whyPerPortGRPC
	whyOtherHost
	whyExcludedPort
	whyDisabled
	whyStartsFirst
	whyOldAgent
	whyNoSidecar
	whyOther
	whys
)

var whyNames = [whys]string{"exec", "per_port_tcp", "per_port_grpc", "other_host", "excluded_port", "virtual_probes_disabled", "starts_first", "old_agent", "no_sidecar", "other"}

// unguarded counts the liveness probes of a pod that are not guarded.
type unguarded [whys]uint8

// unguardedOf counts the liveness probes of a guarded pod, as it is after injection, that the table of its agent does not guard.
func unguardedOf(p *corev1.Pod, table mesh.ProbeTable) (u unguarded) {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if c.LivenessProbe == nil || c.Name == mesh.ContainerSidecar {
				continue
			}
			if reason, is := unguardedProbe(p, c, table); is && u[reason] < 255 {
				u[reason]++
			}
		}
	}
	return u
}

// unguardedProbe returns why the liveness probe of a container is not guarded, and false if it is.
func unguardedProbe(p *corev1.Pod, c *corev1.Container, table mesh.ProbeTable) (why, bool) {
	i := slices.IndexFunc(table, func(entry mesh.Probe) bool { return entry.Container == c.Name && entry.Type == mesh.ProbeLiveness })
	switch {
	case i < 0:
		return whyLeft(p, c), true
	case table[i].Guarded:
		return 0, false
	case table[i].Protocol() == mesh.ProtocolTCP: // in the per-port mode, as the next one
		return whyPerPortTCP, true
	case table[i].Protocol() == mesh.ProtocolGRPC:
		return whyPerPortGRPC, true
	}
	return whyOther, true
}

// whyLeft returns why the agent does not answer the liveness probe of a container.
func whyLeft(p *corev1.Pod, c *corev1.Container) why {
	probe := c.LivenessProbe
	host, port := "", intstr.IntOrString{}
	switch {
	case probe.Exec != nil:
		return whyExec
	case probe.HTTPGet != nil:
		host, port = probe.HTTPGet.Host, probe.HTTPGet.Port
	case probe.TCPSocket != nil:
		host, port = probe.TCPSocket.Host, probe.TCPSocket.Port
	case probe.GRPC != nil:
		port = intstr.FromInt32(probe.GRPC.Port)
	}
	switch enabled, err := mesh.ParseSwitch(p.Annotations[mesh.AnnotationVirtualProbes]); {
	case host != "":
		return whyOtherHost
	case slices.Contains(excludedPorts(p), portOf(c, port)):
		return whyExcludedPort
	case err == nil && !enabled:
		return whyDisabled
	case podspec.Index(p.Spec.InitContainers, c.Name) >= 0 && podspec.Index(p.Spec.Containers, mesh.ContainerSidecar) >= 0:
		return whyStartsFirst // a native sidecar, with --sidecar=container
	}
	return whyOther
}

// excludedPorts are those at which the agent does not answer in the application's place.
func excludedPorts(p *corev1.Pod) []string {
	ports := strings.Split(p.Annotations[mesh.AnnotationExcludeInboundPorts], ",")
	ports = append(ports, p.Annotations[mesh.AnnotationLBHealthPort])
	for i := range ports {
		ports[i] = strings.TrimSpace(ports[i])
	}
	return slices.DeleteFunc(ports, func(port string) bool { return port == "" })
}

// portOf returns the number of a port that may be named, as a text.
func portOf(c *corev1.Container, port intstr.IntOrString) string {
	if port.Type == intstr.Int {
		return strconv.Itoa(port.IntValue())
	}
	for i := range c.Ports {
		if c.Ports[i].Name == port.StrVal {
			return strconv.Itoa(int(c.Ports[i].ContainerPort))
		}
	}
	return port.StrVal
}

// probeTable returns that of the sidecar, nil if there is none that its agent can read.
func probeTable(spec *corev1.PodSpec) mesh.ProbeTable {
	sidecar := podspec.Container(spec, mesh.ContainerSidecar)
	if sidecar == nil {
		return nil
	}
	for i := range sidecar.Env {
		if sidecar.Env[i].Name != mesh.EnvProbeTable {
			continue
		}
		if table, _, err := mesh.ParseProbeTable(sidecar.Env[i].Value); err == nil {
			return table
		}
	}
	return nil
}
