package agentv1_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestServiceProbeCheck(t *testing.T) {
	tests := map[string]mesh.Probe{
		"httpGet":   {HTTPGet: &mesh.HTTPGetProbe{Path: "/ready", Scheme: mesh.SchemeHTTP}},
		"https":     {HTTPGet: &mesh.HTTPGetProbe{Scheme: mesh.SchemeHTTPS, HTTPHeaders: []mesh.HTTPHeader{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}}},
		"h2c":       {HTTPGet: &mesh.HTTPGetProbe{Scheme: mesh.SchemeHTTP, Protocol: mesh.HTTPGetHTTP2}},
		"tcpSocket": {TCPSocket: &mesh.TCPSocketProbe{}},
		"grpc":      {GRPC: &mesh.GRPCProbe{Service: "orders"}},
		"grpc, TLS": {GRPC: &mesh.GRPCProbe{Mode: mesh.GRPCModeTLS}},
	}
	for name, probe := range tests {
		t.Run(name, func(t *testing.T) {
			want := probe.At(8080)
			want.Type = mesh.ProbeReadiness
			var p agentv1.ServiceProbe
			p.SetCheck(want)
			if got, known := p.Check(8080); !known || !cmp.Equal(got, want) {
				t.Errorf("Check() = %+v, %v, want %+v", got, known, want)
			}
		})
	}
	if got, known := (&agentv1.ServiceProbe{}).Check(8080); known {
		t.Errorf("Check() without a handler = %+v", got)
	}
}
