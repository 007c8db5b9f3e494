package generator_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestSecondAddressOfAPod checks that Envoy tries both addresses of a pod for the application, or only the address that
// the inbound names.
func TestSecondAddressOfAPod(t *testing.T) {
	tests := map[string]struct{ second, service, want string }{
		"a pod with one address":            {},
		"a pod with two":                    {second: "fd00::1", want: "fd00::1"},
		"an application at a named address": {second: "fd00::1", service: "127.0.0.1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := &mesh.Dataplane{Meta: mesh.Meta{Name: "web"}, SecondAddress: tc.second}
			d.Spec.Networking = mesh.Networking{
				Address: "10.0.0.1", TransparentProxying: &mesh.TransparentProxying{},
				Inbound: []mesh.Inbound{{Port: 8080, ServiceAddress: tc.service}},
			}
			d.SetDefaults()
			var got []string
			for _, a := range generator.InboundClusters(meshOf(""), &meshview.Proxy{Dataplane: d})[0].GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAdditionalAddresses() {
				got = append(got, a.GetAddress().GetSocketAddress().GetAddress())
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("more addresses of the application: %q, want %q", got, tc.want)
			}
		})
	}
}
