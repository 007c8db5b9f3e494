package mesh_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestApplication(t *testing.T) {
	tests := map[string]struct {
		networking mesh.Networking
		port       uint32
		want       string
	}{
		"behind an inbound": {
			mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, ServicePort: 8080}}}, 80, "127.0.0.1:8080",
		},
		"behind an inbound with its own service address": {
			mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, ServiceAddress: "10.0.0.9"}}}, 80, "10.0.0.9:80",
		},
		"an inbound at another address is another's": {
			mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Address: "10.0.0.2", Port: 80, ServicePort: 8080}}}, 80, "127.0.0.1:80",
		},
		"an ignored inbound comes last": {
			mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, ServicePort: 9, State: mesh.InboundIgnored}, {Port: 80, ServicePort: 8080}}}, 80, "127.0.0.1:8080",
		},
		"an ignored inbound alone": {
			mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, ServicePort: 8080, State: mesh.InboundIgnored}}}, 80, "127.0.0.1:8080",
		},
		"no inbound": {mesh.Networking{Address: "fd00::1"}, 2379, "127.0.0.1:2379"},
		"redirected": {
			mesh.Networking{Address: "fd00::1", TransparentProxying: &mesh.TransparentProxying{}}, 2379, "[fd00::1]:2379",
		},
		"redirected, behind an inbound": {
			mesh.Networking{Address: "10.0.0.1", TransparentProxying: &mesh.TransparentProxying{}, Inbound: []mesh.Inbound{{Port: 80}}}, 80, "10.0.0.1:80",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := &mesh.Dataplane{Spec: mesh.DataplaneSpec{Networking: tc.networking}}
			d.SetDefaults()
			if got := d.Application(tc.port).String(); got != tc.want {
				t.Errorf("Application(%d) = %s, want %s", tc.port, got, tc.want)
			}
		})
	}
}
