package restarts

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// why is the reason why a liveness probe of a guarded pod is not guarded.
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

var whyNames = [whys]string{"exec", "per_port_tcp", "per_port_grpc", "other_host", "excluded_port",
	"virtual_probes_disabled", "starts_first", "old_agent", "no_sidecar", "other"}

// unguarded counts the liveness probes of a pod that are not guarded.
type unguarded [whys]uint8

// unguardedOf counts the liveness probes of an injected guarded pod that its agent's probe table does not guard.
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
	i := slices.IndexFunc(table,
		func(entry mesh.Probe) bool { return entry.Container == c.Name && entry.Type == mesh.ProbeLiveness })
	switch {
	case i < 0:
		return whyLeft(p, c), true
	case table[i].Guarded:
		return 0, false
	case table[i].Protocol() == mesh.ProtocolTCP: // in per-port mode, as in the next case
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
	case slices.Contains(podspec.ExcludedInbound(&p.Spec), portOf(c, port)):
		return whyExcludedPort
	case err == nil && !enabled:
		return whyDisabled
	case podspec.Index(p.Spec.InitContainers, c.Name) >= 0 && podspec.Index(p.Spec.Containers, mesh.ContainerSidecar) >= 0:
		return whyStartsFirst // a native sidecar, with --sidecar=container
	}
	return whyOther
}

// portOf returns the number of a port, 0 for an unknown name.
func portOf(c *corev1.Container, port intstr.IntOrString) uint32 {
	if port.Type == intstr.Int {
		return uint32(port.IntValue())
	}
	for i := range c.Ports {
		if c.Ports[i].Name == port.StrVal {
			return uint32(c.Ports[i].ContainerPort)
		}
	}
	return 0
}
