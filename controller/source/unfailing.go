package source

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// maxUnfailing bounds the listed probes of a pod, as an agent's report.
const maxUnfailing = 60

// Unfailing is a probe that cannot fail.
type Unfailing struct {
	Container string
	Probe     mesh.ProbeType
	Port      uint32
	// Reason says why, and what to change.
	Reason string
}

// unfailing returns the tcpSocket probes at ports that are redirected: Envoy accepts each connection. The webhook makes
// the agent answer them, unless the pod asks it not to, or the container starts before the agent.
func (p *Pod) unfailing(of *corev1.Pod) (all []Unfailing) {
	for probe := range eachProbe(&of.Spec) {
		port, is := tcpPort(probe.container, probe.Probe)
		if is && p.redirects(port) && len(all) < maxUnfailing {
			why := intern(whyUnfailing(of, probe.container, port))
			all = append(all, Unfailing{intern(probe.container.Name), probe.kind, port, why})
		}
	}
	return all
}

// tcpPort returns the port of the pod to which a tcpSocket probe connects, and false for any other probe.
func tcpPort(c *corev1.Container, p *corev1.Probe) (uint32, bool) {
	if p.TCPSocket == nil || p.TCPSocket.Host != "" {
		return 0, false
	}
	if p.ProbeHandler != (corev1.ProbeHandler{TCPSocket: p.TCPSocket}) { // the API server accepts one handler only
		return 0, false
	}
	name := p.TCPSocket.Port.StrVal
	if name == "" {
		return uint32(p.TCPSocket.Port.IntVal), true
	}
	// As the kubelet does, use the first port of that name.
	i := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	if i < 0 {
		return 0, false
	}
	return uint32(c.Ports[i].ContainerPort), true
}

// whyUnfailing returns why a probe cannot fail, and what to change.
func whyUnfailing(of *corev1.Pod, c *corev1.Container, port uint32) string {
	accepts := fmt.Sprintf("Envoy accepts each connection to port %d, whether the application listens or not", port)
	switch sidecar := podspec.Container(&of.Spec, mesh.ContainerSidecar); {
	case of.Annotations[mesh.AnnotationVirtualProbes] == "disabled":
		return fmt.Sprintf("%s: remove the annotation %s: disabled of the pod, so that the agent answers the probe",
			accepts, mesh.AnnotationVirtualProbes)
	case podspec.IsNativeSidecar(c) && sidecar != nil && !podspec.IsNativeSidecar(sidecar):
		return accepts + ", and this container starts before the agent: set sidecarForm to native"
	}
	return fmt.Sprintf("%s: create the pod again, so that the agent answers the probe, or add the port to %s",
		accepts, mesh.AnnotationExcludeInboundPorts)
}

// StateOf returns what Kubernetes says of a pod, by the name of its Dataplane, nil for an unknown pod.
func (s *Source) StateOf(dataplane string) *adminv1.PodState {
	namespace, name, _ := mesh.ObjectOf(dataplane)
	p := s.pods.Get(watch.Key{Namespace: namespace, Name: name})
	if p == nil {
		return nil
	}
	state := &adminv1.PodState{
		Ready: p.Healthy && !p.Marked, Created: timestamppb.New(p.Created), ProbeSet: p.Probes.id,
	}
	for _, u := range p.Unfailing {
		state.Unfailing = append(state.Unfailing, &adminv1.UnfailingProbe{
			Container: u.Container, Probe: string(u.Probe), Port: u.Port, Reason: u.Reason,
		})
	}
	return state
}
