package check

import (
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// sidecarPorts maps the ports of the sidecar to their purpose.
var sidecarPorts = func() map[int32]string {
	ports := webhook.ReservedPorts()
	ports[mesh.PortVirtualProbes], ports[mesh.PortPodMetrics] = "the probes", "Prometheus"
	return ports
}()

// declaredPorts reports workloads that declare ports of the sidecar. The webhook rejects such pods.
var declaredPorts = check{"ports", (*facts).needsWorkloads, func(f *facts, l *lines) {
	namespaces, injection := f.namespacesByName(), f.injection()
	var refused, later, moved []string
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		ns := namespaces[pod.Namespace]
		if ns == nil || ended(pod) || podspec.Unsupported(&pod.Spec) != "" || podspec.IsInjected(&pod.Spec) {
			continue
		}
		selection, err := webhook.Select(ns, pod, injection)
		for port, container := range declared(pod) {
			note := fmt.Sprintf("%s: container %s has port %d", workloadOf(pod), container, port)
			switch {
			case port == mesh.PortVirtualProbes:
				moved = append(moved, note)
			case port == mesh.PortPodMetrics && hasMetricsPort(pod):
			case err == nil && selection.Injected:
				refused = append(refused, note)
			default:
				later = append(later, note)
			}
		}
	}
	free := fmt.Sprintf("change the application's port; for %d, alternatively set the pods' annotation %s to another port or \"0\"",
		mesh.PortPodMetrics, mesh.AnnotationMetricsPort)
	l.failOf(sorted(refused),
		"workloads that ask for a sidecar declare its ports: the webhook will reject their next pods", free)
	l.warnOf(sorted(later),
		"workloads without a sidecar declare its ports: with the injection label, the webhook would reject their pods", free)
	l.warnOf(sorted(moved),
		fmt.Sprintf("workloads declare port %d: their sidecars will use a port from %d to %d for probes",
			mesh.PortVirtualProbes, mesh.FirstSparePort, mesh.LastSparePort),
		fmt.Sprintf("nothing, unless a NetworkPolicy names the port; annotation %s sets another one",
			mesh.AnnotationVirtualProbesPort))
	ports := slices.Sorted(maps.Keys(sidecarPorts))
	l.ok("no workload declares " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]"))
}}

// declared maps the ports of the sidecar that a pod declares to their containers.
func declared(pod *corev1.Pod) map[int32]string {
	ports := map[int32]string{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for _, p := range c.Ports {
				if p.Protocol == corev1.ProtocolUDP || p.Protocol == corev1.ProtocolSCTP {
					continue
				}
				if _, of := sidecarPorts[p.ContainerPort]; of && ports[p.ContainerPort] == "" {
					ports[p.ContainerPort] = c.Name
				}
			}
		}
	}
	return ports
}

// hasMetricsPort reports whether a pod's annotation sets the sidecar's port for Prometheus.
func hasMetricsPort(pod *corev1.Pod) bool { return pod.Annotations[mesh.AnnotationMetricsPort] != "" }

// bound finds the port in errors of Envoy and the agent about an address in use.
var bound = regexp.MustCompile(`(?i)(?:bind|listen)[^\n]*?:(\d{1,5})[':" ][^\n]*already in use`)

// takenPorts reports ports that both a sidecar and an application of its pod want. It reads the listeners that Envoy
// rejects, and the termination messages of containers.
var takenPorts = check{"taken ports", (*facts).needsPods, func(f *facts, l *lines) {
	var taken []string
	for _, p := range f.admin.is.proxies {
		for _, nack := range describe.Nacks(p) {
			if port := portIn(nack.GetReason()); port != 0 {
				taken = append(taken, fmt.Sprintf("%s: Envoy cannot listen on port %d%s", proxyName(p), port, purpose(port)))
			}
		}
	}
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		if ended(pod) {
			continue
		}
		for container, words := range lastWords(pod) {
			port := portIn(words)
			switch {
			case port == 0:
			case container == mesh.ContainerSidecar:
				taken = append(taken, fmt.Sprintf("%s: the agent cannot listen on port %d%s", workloadOf(pod), port, purpose(port)))
			case sidecarHas(pod, port):
				taken = append(taken, fmt.Sprintf("%s: container %s cannot listen on port %d, which the sidecar uses%s", workloadOf(pod), container, port, purpose(port)))
			}
		}
	}
	l.failOf(sorted(taken), "the sidecar and another process of the pod use the same port",
		fmt.Sprintf("change the application's port; for %d, alternatively set the pods' annotation %s, for %d annotation %s",
			mesh.PortVirtualProbes, mesh.AnnotationVirtualProbesPort, mesh.PortPodMetrics, mesh.AnnotationMetricsPort))
	if f.admin.err == nil { // else controlPlane reports the error
		l.ok("no port conflicts")
	}
}}

// lastWords returns the termination message of each container of a pod that is not Ready.
func lastWords(pod *corev1.Pod) iter.Seq2[string, string] {
	return func(yield func(container, words string) bool) {
		for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for _, s := range statuses {
				for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
					if state.Terminated != nil && !s.Ready && !yield(s.Name, state.Terminated.Message) {
						return
					}
				}
			}
		}
	}
}

// sidecarHas reports whether a pod has a sidecar that listens on a port.
func sidecarHas(pod *corev1.Pod, port int32) bool {
	sidecar := podspec.Container(&pod.Spec, mesh.ContainerSidecar)
	if sidecar == nil || !podspec.IsInjected(&pod.Spec) {
		return false
	}
	_, reserved := webhook.ReservedPorts()[port]
	return reserved || port == podspec.PortArgument[int32](sidecar, mesh.ArgVirtualPort) ||
		port == podspec.PortArgument[int32](sidecar, mesh.ArgMetricsAddress)
}

// portIn returns the port in an error about an address in use, 0 for any other text.
func portIn(text string) int32 {
	found := bound.FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	port, err := strconv.ParseUint(found[1], 10, 16)
	if err != nil {
		return 0
	}
	return int32(port)
}

// purpose returns the sidecar's purpose of a port, to append to a line.
func purpose(port int32) string {
	if of := sidecarPorts[port]; of != "" {
		return ", for " + strings.TrimPrefix(of, "the ")
	}
	return ""
}
