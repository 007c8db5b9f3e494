package meshview

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestService(t *testing.T) {
	at := netip.MustParseAddrPort
	plainUnready := service("api", "10.0.0.1")
	no := false
	plainUnready.Spec.Endpoints[0].Health = &mesh.Health{Ready: &no}
	declared := service("api")
	declared.Spec.Protocol = mesh.ProtocolGRPC
	twoPorts := dataplane("api-1", "10.0.0.1", "api")
	twoPorts.Spec.Networking.Inbound = append(twoPorts.Spec.Networking.Inbound,
		mesh.Inbound{Address: "10.0.0.7", Port: 81, Tags: tags("api")}, mesh.Inbound{Port: 82, Tags: tags("other")})
	drained := map[mesh.ID]mesh.Observation{"default/api-1": {Draining: true}}

	sidecar := func(address string, h Health) Endpoint {
		return Endpoint{Address: at(address), Health: h, Sidecar: true}
	}
	plain := func(address string, h Health) Endpoint { return Endpoint{Address: at(address), Health: h} }
	api := func(id ...string) []string {
		for i := range id {
			id[i] = "spiffe://default.sonde.internal/workload/" + id[i]
		}
		return id
	}
	tests := map[string]struct {
		objects  []mesh.Object
		observed map[mesh.ID]mesh.Observation
		want     Service // without Mesh and Name, which are the same in all cases
	}{
		"inbounds with an address of their own, ports of other services": {
			objects: []mesh.Object{twoPorts},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("10.0.0.7:81", Ready)}},
		},
		"endpoints with and without a sidecar, sorted by address": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.10", "api"), service("api", "10.0.0.9", "10.0.0.11", "240.0.0.2:80", "240.0.0.1:80")},
			want: Service{
				Protocol: "tcp", Identities: api("api"), Addresses: []netip.AddrPort{at("240.0.0.1:80"), at("240.0.0.2:80")},
				Endpoints: []Endpoint{plain("10.0.0.9:80", Ready), sidecar("10.0.0.10:80", Ready), plain("10.0.0.11:80", Ready)},
			},
		},
		"the sidecar counts at an address, even if it is not ready": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready), service("api", "10.0.0.1")},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", NotReady)}},
		},
		"of two proxies at one address the healthier counts": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready), dataplane("api-2", "10.0.0.1", "api"), dataplane("api-3", "10.0.0.1", "api", unready)},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready)}},
		},
		"a server that speaks first": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", serverFirst), dataplane("api-2", "10.0.0.1", "api")},
			want: Service{
				Protocol: "tcp", Identities: api("api"),
				Endpoints: []Endpoint{{Address: at("10.0.0.1:80"), Health: Ready, Sidecar: true, ServerFirst: true}},
			},
		},
		"draining": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), dataplane("api-2", "10.0.0.2", "api")}, observed: drained,
			want: Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Draining), sidecar("10.0.0.2:80", Ready)}},
		},
		"not ready stays not ready while it drains": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready)}, observed: drained,
			want: Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", NotReady)}},
		},
		"a plain endpoint that is not ready": {
			objects: []mesh.Object{plainUnready},
			want:    Service{Protocol: "tcp", Endpoints: []Endpoint{plain("10.0.0.1:80", NotReady)}},
		},
		"identities of all inbounds, ready or not, each once": {
			objects: []mesh.Object{
				dataplane("api-1", "10.0.0.1", "api", workload("z")), dataplane("api-2", "10.0.0.2", "api", workload("a"), unready),
				dataplane("api-3", "10.0.0.3", "api", workload("a")),
			},
			want: Service{
				Protocol: "tcp", Identities: api("a", "z"),
				Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("10.0.0.2:80", NotReady), sidecar("10.0.0.3:80", Ready)},
			},
		},
		"the protocol of the Service object": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", speaks("http")), declared},
			want:    Service{Protocol: "grpc", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready)}},
		},
		"known by an outbound alone": {
			objects: []mesh.Object{dataplane("web-1", "10.0.0.1", "web", calls("api"))},
			want:    Service{Protocol: "tcp"},
		},
		"IPv6, and IPv4 in its form": {
			objects: []mesh.Object{dataplane("api-1", "::ffff:10.0.0.1", "api"), dataplane("api-2", "fd00::1", "api")},
			want:    Service{Protocol: "tcp", Identities: api("api"), Endpoints: []Endpoint{sidecar("10.0.0.1:80", Ready), sidecar("[fd00::1]:80", Ready)}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := set(tc.objects...)
			for id, o := range tc.observed {
				b.Observe(id, o)
			}
			tc.want.Mesh, tc.want.Name = "default", "api"
			_, got := mustBuild(t, b).After.Service("default/api")
			if diff := cmp.Diff(&tc.want, got, lists, forClients); diff != "" {
				t.Errorf("Service (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProtocolOfDisagreeingInbounds(t *testing.T) {
	tests := map[string]struct {
		inbounds []mesh.Protocol
		want     mesh.Protocol
	}{
		"all agree":                   {inbounds: []mesh.Protocol{"http", "http"}, want: "http"},
		"grpc is http2 underneath":    {inbounds: []mesh.Protocol{"grpc", "http2", "grpc"}, want: "http2"},
		"http and http2 are bytes":    {inbounds: []mesh.Protocol{"http", "http2"}, want: "tcp"},
		"http2, grpc and then http":   {inbounds: []mesh.Protocol{"http2", "grpc", "http"}, want: "tcp"},
		"one that carries bytes only": {inbounds: []mesh.Protocol{"http", "tcp", "http"}, want: "tcp"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for range tc.inbounds {
				if got := protocolOf(nil, tc.inbounds); got != tc.want {
					t.Errorf("protocolOf(%v) = %s, want %s", tc.inbounds, got, tc.want)
				}
				tc.inbounds = append(tc.inbounds[1:], tc.inbounds[0])
			}
		})
	}
}

func TestServing(t *testing.T) {
	tests := map[string]struct {
		health []Health
		want   []int
	}{
		"ready ones alone":                {health: []Health{Ready, Draining, NotReady, Ready}, want: []int{0, 3}},
		"draining ones while none is":     {health: []Health{NotReady, Draining, NotReady}, want: []int{1}},
		"none where all are out of order": {health: []Health{NotReady}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := &Service{}
			for i, h := range tc.health {
				s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(i)), Health: h})
			}
			var got []int
			for _, e := range s.Serving() {
				got = append(got, int(e.Address.Port()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
