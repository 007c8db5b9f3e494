package webhook

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Request is a probe or hook as it is in a pod, rewritten or not: what the kubelet asks.
type Request struct {
	// Container that it belongs to.
	Container string
	// Type of the probe or hook.
	Type mesh.ProbeType
	// Field is its place in the pod, as warnings name it: containers[web].livenessProbe.
	Field string
	// Written is it in one line, to be shown.
	Written string
	// Host that is asked, "" for the pod itself.
	Host string
	// Port that is asked, 0 if none is, or if the container has no port of that name.
	Port int32
	// Protocol that is spoken to Port, "" if none is asked.
	Protocol mesh.Protocol
	// Probe or Hook is it itself, in the pod that Requests got; the other one is nil.
	Probe *corev1.Probe
	Hook  *corev1.LifecycleHandler
}

// Requests returns the probes and hooks of all containers of a pod except ours, in the order of the probe table.
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

// Asks returns in one line what the kubelet asks in place of a probe or hook that is rewritten. virtual is the port that Explain returns.
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
