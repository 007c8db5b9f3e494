package mesh_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// probed returns a Dataplane in the per-port mode on the address of its application, with ports for probes 29000, 29001
// and 29002.
func probed() *mesh.Dataplane {
	return &mesh.Dataplane{Meta: mesh.Meta{Name: "web-1"}, ProbesMode: mesh.ProbesPerPort, Spec: mesh.DataplaneSpec{
		Networking: mesh.Networking{
			Address:  "127.0.0.1",
			Inbound:  []mesh.Inbound{{Port: 28080, ServicePort: 23000, Tags: tags("web")}},
			Outbound: []mesh.Outbound{{Port: 28090, Tags: tags("db")}},
		},
		Probes:    &mesh.Probes{Port: 29000, Endpoints: []mesh.ProbeEndpoint{{InboundPort: 28080, InboundPath: "/in", Path: "/p"}}},
		TCPProbes: []mesh.TCPProbe{{Port: 29001, InboundPort: 28080, Protocol: mesh.ProtocolTCP}, {Port: 29002, InboundPort: 23001}},
	}}
}

func TestProbesAskTheApplication(t *testing.T) {
	ask := func(port uint32) func(*mesh.Dataplane) {
		return func(d *mesh.Dataplane) { d.Spec.TCPProbes[0].InboundPort = port }
	}
	also := func(port uint32, change func(*mesh.Dataplane, *mesh.Networking)) func(*mesh.Dataplane) {
		return func(d *mesh.Dataplane) { ask(port)(d); change(d, &d.Spec.Networking) }
	}
	inbound := func(port uint32, in mesh.Inbound) func(*mesh.Dataplane) {
		return also(port, func(_ *mesh.Dataplane, n *mesh.Networking) { n.Inbound = append(n.Inbound, in) })
	}
	served := func(p *mesh.ServiceProbe) func(*mesh.Dataplane) {
		return func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].ServiceProbe = p }
	}
	redirected := func(port uint32) func(*mesh.Dataplane) {
		return also(port, func(d *mesh.Dataplane, _ *mesh.Networking) { redirect(d).Address = "10.0.0.1" })
	}
	refused := func(port, by string) violations {
		at, _, _ := strings.Cut(by, ",")
		return violations{{"tcpProbes[0].inboundPort", port, "must name the application: the proxy itself listens on " + at + ", for" + strings.TrimPrefix(by, at+",")}}
	}
	elsewhere := func(_ *mesh.Dataplane, n *mesh.Networking) { n.Address = "10.0.0.1" }
	const service, there = "networking.inbound[0].serviceProbe", "must name the application: the proxy itself listens there, for "

	tests := map[string]struct {
		change func(*mesh.Dataplane)
		want   violations
	}{
		"the application behind an inbound":    {ask(28080), nil},
		"another port of the application":      {ask(23001), nil},
		"the port for HTTP probes":             {ask(29000), refused("29000", "127.0.0.1:29000, probes")},
		"itself":                               {ask(29001), violations{{"tcpProbes[0].inboundPort", "29001", "must name the application: this is the port for probes itself"}}},
		"another port for TCP probes":          {ask(29002), refused("29002", "127.0.0.1:29002, tcpProbes[1]")},
		"an outbound":                          {ask(28090), refused("28090", "127.0.0.1:28090, networking.outbound[0]")},
		"the application, not the port 28080":  {also(28080, elsewhere), nil},
		"a port for probes on another address": {also(29000, elsewhere), nil},
		"an outbound on all addresses": {
			also(28090, func(_ *mesh.Dataplane, n *mesh.Networking) { n.Outbound[0].Address = "0.0.0.0" }),
			refused("28090", "127.0.0.1:28090, networking.outbound[0]"),
		},
		"an outbound on all addresses of IPv6": {
			also(28090, func(_ *mesh.Dataplane, n *mesh.Networking) { n.Outbound[0].Address = "::" }), nil,
		},
		"an outbound on another address": {
			also(28090, func(_ *mesh.Dataplane, n *mesh.Networking) { n.Outbound[0].Address = "127.0.0.2" }), nil,
		},
		"a listener of an inbound on the address of the application": {
			also(28081, func(_ *mesh.Dataplane, n *mesh.Networking) {
				n.Address, n.Inbound[0].Address, n.Inbound[0].Port = "10.0.0.1", "127.0.0.1", 28081
			}),
			refused("28081", "127.0.0.1:28081, networking.inbound[0]"),
		},
		"an inbound before another one": {
			inbound(28081, mesh.Inbound{Port: 28081, ServicePort: 28080, Tags: tags("front")}),
			refused("28081", "127.0.0.1:28080, networking.inbound[0]"),
		},
		"an inbound that is ignored": {
			inbound(28081, mesh.Inbound{Port: 28081, ServicePort: 28081, Tags: tags("old"), State: mesh.InboundIgnored}), nil,
		},
		"an inbound that was ignored, and another one in its place": {
			func(d *mesh.Dataplane) {
				n := &d.Spec.Networking
				n.Inbound = append([]mesh.Inbound{{Port: 28080, ServicePort: 28080, Tags: tags("old"), State: mesh.InboundIgnored}}, n.Inbound...)
			}, nil,
		},
		"an HTTP probe of an outbound": {
			func(d *mesh.Dataplane) { d.Spec.Probes.Endpoints[0].InboundPort = 28090 },
			violations{{"probes.endpoints[0].inboundPort", "28090", "must name the application: the proxy itself listens on 127.0.0.1:28090, for networking.outbound[0]"}},
		},
		"probes without endpoints have no port": {
			also(29000, func(d *mesh.Dataplane, _ *mesh.Networking) { d.Spec.Probes.Endpoints = nil }), nil,
		},
		"each other": {
			func(d *mesh.Dataplane) {
				d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 9001, InboundPort: 9002}, {Port: 9002, InboundPort: 9001}}
			},
			violations{
				{"tcpProbes[0].inboundPort", "9002", "must name the application: the proxy itself listens on 127.0.0.1:9002, for tcpProbes[1]"},
				{"tcpProbes[1].inboundPort", "9001", "must name the application: the proxy itself listens on 127.0.0.1:9001, for tcpProbes[0]"},
			},
		},
		"probes without effect": {also(28090, func(d *mesh.Dataplane, _ *mesh.Networking) { d.ProbesMode = mesh.ProbesUnified }), nil},

		"redirected: an inbound":                  {redirected(28080), nil},
		"redirected: a port without an inbound":   {redirected(23001), nil},
		"redirected: an outbound":                 {redirected(28090), nil},
		"redirected: the port for HTTP probes":    {redirected(29000), refused("29000", "10.0.0.1:29000, probes")},
		"redirected: another port for TCP probes": {redirected(29002), refused("29002", "10.0.0.1:29002, tcpProbes[1]")},
		"redirected: what is redirected":          {redirected(15006), refused("15006", "10.0.0.1:15006, networking.transparentProxying.redirectPortInbound")},
		"redirected: what is redirected, IPv6": {
			also(15001, func(d *mesh.Dataplane, _ *mesh.Networking) { redirect(d).Address = "fd00::1" }),
			refused("15001", "[fd00::1]:15001, networking.transparentProxying.redirectPortOutbound"),
		},

		"serviceProbe of the application": {served(&mesh.ServiceProbe{}), nil},
		"serviceProbe of an outbound": {
			served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 28090}}), violations{{service, "127.0.0.1:28090", there + "networking.outbound[0]"}},
		},
		"serviceProbe of the port for HTTP probes": {
			served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 29000}}), violations{{service, "127.0.0.1:29000", there + "probes"}},
		},
		"serviceProbe of a port for TCP probes": {
			served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 29001}}), violations{{service, "127.0.0.1:29001", there + "tcpProbes[0]"}},
		},
		"serviceProbe of a port for probes without effect": {
			func(d *mesh.Dataplane) {
				d.ProbesMode = mesh.ProbesUnified
				served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 29001}})(d)
			}, nil,
		},
		"serviceProbe, an inbound that is ignored": {
			func(d *mesh.Dataplane) {
				served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 28081}})(d)
				n := &d.Spec.Networking
				n.Inbound = append(n.Inbound, mesh.Inbound{Port: 28081, ServicePort: 28082, Tags: tags("old"), State: mesh.InboundIgnored})
			}, nil,
		},
		"redirected: serviceProbe of a port for TCP probes": {
			func(d *mesh.Dataplane) {
				redirect(d).Address = "10.0.0.1"
				served(&mesh.ServiceProbe{TCPSocket: &mesh.TCPSocketProbe{Port: 29001}})(d)
			}, violations{{service, "10.0.0.1:29001", there + "tcpProbes[0]"}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			d := probed()
			tc.change(d)
			if diff := cmp.Diff(tc.want, violated(t, d)); diff != "" {
				t.Errorf("Validate() (-want +got):\n%s", diff)
			}
		})
	}
}
