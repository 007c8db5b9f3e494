package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Request is a probe or hook in a pod, rewritten or not: the request of the kubelet.
type Request struct {
	// Container is the owner's name.
	Container string
	// Type of the probe or hook.
	Type mesh.ProbeType
	// Field is its path in the pod, as in warnings: containers[web].livenessProbe.
	Field string
	// Written describes it in one line.
	Written string
	// Host of the request, "" for the pod itself.
	Host string
	// Port of the request, 0 for none, or if the container has no port with that name.
	Port int32
	// Protocol of the request, "" without a port.
	Protocol mesh.Protocol
	// Probe or Hook points into the pod that Requests got; the other one is nil.
	Probe *corev1.Probe
	Hook  *corev1.LifecycleHandler
}

// Requests returns the probes and hooks of all containers of a pod except Sonde's, in the order of the probe table.
func Requests(pod *corev1.Pod) (all []Request) {
	for _, h := range handlersOf(pod, nil) {
		port, _ := h.port()
		all = append(all, Request{
			Container: h.container.Name, Type: h.kind, Field: h.field(), Written: h.written(),
			Host: h.host, Port: port, Protocol: h.asks.Protocol(), Probe: h.probe, Hook: h.hook,
		})
	}
	return all
}

// Asks describes the kubelet's request for a rewritten probe or hook in one line. virtual is the port that Explain
// returns.
func (d Decision) Asks(virtual int32) string {
	p := d.Probe
	switch {
	case p.VirtualPort != 0:
		asks := p.At(p.VirtualPort)
		if asks.GRPC != nil {
			asks.GRPC.Mode = "" // see removeNewField
		}
		return fmt.Sprintf("%s, %d s", asks.Request(p.VirtualPort), p.TimeoutSeconds)
	case d.Type.IsHook():
		return fmt.Sprintf("GET :%d%s", virtual, p.VirtualPath())
	}
	asks := fmt.Sprintf("GET :%d%s, %d s", virtual, p.VirtualPath(), d.Kubelet.TimeoutSeconds)
	if p.Guarded {
		asks += fmt.Sprintf(", %d failures", d.Kubelet.FailureThreshold)
	}
	return asks
}
