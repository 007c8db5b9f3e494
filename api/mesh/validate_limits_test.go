package mesh_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Messages quote no more than a part of what a user has written: each of a hundred could quote a megabyte.
func TestMessagesAreShort(t *testing.T) {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "a"}}
	d.Spec.Networking.Address = "10.0.0.1"
	for i := range 200 {
		workload := "x"
		if i == 0 {
			workload = strings.Repeat("x", 1<<20)
		}
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: uint32(i + 1), Tags: mesh.Tags{mesh.LabelWorkload: workload, strings.Repeat("k", 100_000): "v "}})
	}
	d.SetDefaults()
	if got := len(d.Validate().Error()); got > 400<<10 {
		t.Errorf("the error has %d bytes", got)
	}
}

// TestValidateIsLimited checks that a completely wrong object costs no more than a valid one.
func TestValidateIsLimited(t *testing.T) {
	networking := func(change func(*mesh.DataplaneSpec)) mesh.Object {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "a"}}
		d.Spec.Networking.Address = "10.0.0.1"
		change(&d.Spec)
		return d
	}
	const many = 10_001
	tests := map[string]struct {
		object mesh.Object
		first  string
		errors int
		last   string
	}{
		"inbounds":  {networking(func(s *mesh.DataplaneSpec) { s.Networking.Inbound = make([]mesh.Inbound, many) }), `networking.inbound: "10001 items"`, 1, "must have at most 10000 items"},
		"outbounds": {networking(func(s *mesh.DataplaneSpec) { s.Networking.Outbound = make([]mesh.Outbound, many) }), `networking.outbound: "10001 items"`, 1, "must have at most 10000 items"},
		"probes": {networking(func(s *mesh.DataplaneSpec) {
			s.TCPProbes, s.Probes = make([]mesh.TCPProbe, many), &mesh.Probes{Endpoints: make([]mesh.ProbeEndpoint, many)}
		}), `tcpProbes: "10001 items"`, 2, "probes.endpoints"},
		"reachable services": {networking(func(s *mesh.DataplaneSpec) {
			s.Networking.TransparentProxying = &mesh.TransparentProxying{ReachableServices: make([]string, many)}
		}), "networking.transparentProxying.reachableServices", 1, "must have at most 10000 items"},
		"backends":   {&mesh.Mesh{Name: "a", Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{Backends: make([]mesh.Backend, many)}}}, `mtls.backends: "10001 items"`, 1, "must have at most 10000 items"},
		"violations": {networking(func(s *mesh.DataplaneSpec) { s.Networking.Inbound = make([]mesh.Inbound, many-1) }), "networking.inbound[0].port", 101, "there are more errors"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			joined, ok := tc.object.Validate().(interface{ Unwrap() []error })
			if !ok {
				t.Fatal("it is valid")
			}
			errs := joined.Unwrap()
			if n := len(errs); n != tc.errors || !strings.Contains(errs[0].Error(), tc.first) || !strings.Contains(errs[n-1].Error(), tc.last) {
				t.Errorf("%d violations, %v to %v; want %d, %q to %q", n, errs[0], errs[n-1], tc.errors, tc.first, tc.last)
			}
		})
	}
}
