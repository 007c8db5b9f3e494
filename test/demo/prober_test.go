//go:build !kubelet

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestProbesAsTheClientTakesThem converts the probes of the demo, before and after injection.
func TestProbesAsTheClientTakesThem(t *testing.T) {
	written := probedPod("b-1", 8080)
	injected, _, err := webhook.Inject(written, webhook.Options{Sidecar: webhook.Container, VirtualProbesPort: 9000})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		pod  *corev1.Pod
		want [3]mesh.Probe // in the order of probeKinds
	}{
		"written": {written, [3]mesh.Probe{
			{HTTPGet: &mesh.HTTPGetProbe{Path: "/healthz", Port: 8080}}, {TCPSocket: &mesh.TCPSocketProbe{Port: 8080}}, {GRPC: &mesh.GRPCProbe{Port: 8080}},
		}},
		"injected": {injected, [3]mesh.Probe{
			{HTTPGet: &mesh.HTTPGetProbe{Path: "/8080/healthz", Port: 9000}}, {HTTPGet: &mesh.HTTPGetProbe{Path: "/tcp/8080", Port: 9000}}, {HTTPGet: &mesh.HTTPGetProbe{Path: "/grpc/8080", Port: 9000}},
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := container(tc.pod, "app")
			if err != nil {
				t.Fatal(err)
			}
			for i, of := range probeOf {
				got, err := meshProbe(probeNamed(c, of))
				if err != nil {
					t.Fatal(err)
				}
				if get := got.HTTPGet; get != nil && name == "injected" {
					if len(get.HTTPHeaders) != 1 || get.HTTPHeaders[0].Name != mesh.ProbeHeader {
						t.Errorf("%s: headers %v, want %s", of, get.HTTPHeaders, mesh.ProbeHeader)
					}
					get.HTTPHeaders, get.Scheme = nil, ""
				}
				if diff := cmp.Diff(tc.want[i], got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", of, diff)
				}
			}
		})
	}
	if _, err := meshProbe(&corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{}}}); err == nil {
		t.Error("meshProbe() of exec has no error")
	}
}
