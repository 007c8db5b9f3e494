//go:build !kubelet

package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// probed names the prober. The agent's client probes and judges like the kubelet, which test/fidelity checks case by
// case. The kubelet's own code takes as long to compile as all programs of the demo, so it is only used with the
// build tag kubelet.
const probed = "probes of b-1, made as the kubelet makes them"

// verdicts are the verdicts in the kubelet's words.
var verdicts = map[string]verdict{"success": success, "warning": "Warning", "failure": failure, "errored": "Errored"}

// ask makes one probe of a container.
func ask(ctx context.Context, pod *corev1.Pod, c *corev1.Container, kind string) (finding, error) {
	p := probeNamed(c, kind)
	check, err := meshProbe(p)
	if err != nil {
		return finding{}, fmt.Errorf("%s probe of %s: %w", kind, pod.Name, err)
	}
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return finding{}, err
	}
	client := probe.NewCheck(check, address, time.Duration(p.TimeoutSeconds)*time.Second, nil)
	defer client.End()
	o := client.Ask(ctx)
	return finding{verdicts[o.Verdict], o.Reason}, nil
}

// meshProbe converts a probe of a pod for the client. Ports must be numbers.
func meshProbe(p *corev1.Probe) (mesh.Probe, error) {
	switch {
	case p.HTTPGet != nil:
		get := &mesh.HTTPGetProbe{Path: p.HTTPGet.Path, Port: p.HTTPGet.Port.IntVal, Scheme: string(p.HTTPGet.Scheme)}
		for _, h := range p.HTTPGet.HTTPHeaders {
			get.HTTPHeaders = append(get.HTTPHeaders, mesh.HTTPHeader{Name: h.Name, Value: h.Value})
		}
		return mesh.Probe{HTTPGet: get}, nil
	case p.TCPSocket != nil:
		return mesh.Probe{TCPSocket: &mesh.TCPSocketProbe{Port: p.TCPSocket.Port.IntVal}}, nil
	case p.GRPC != nil:
		check := &mesh.GRPCProbe{Port: p.GRPC.Port}
		if p.GRPC.Service != nil {
			check.Service = *p.GRPC.Service
		}
		return mesh.Probe{GRPC: check}, nil
	}
	return mesh.Probe{}, fmt.Errorf("unsupported handler %+v", p.ProbeHandler)
}
