package mesh_test

import (
	"net/netip"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestObservationAccepts(t *testing.T) {
	t.Parallel()
	addresses := func(list ...string) mesh.Addresses {
		var all []netip.AddrPort
		for _, at := range list {
			all = append(all, netip.MustParseAddrPort(at))
		}
		return mesh.MakeAddresses(all)
	}
	plain := func(address string) *mesh.Dataplane {
		return &mesh.Dataplane{Spec: mesh.DataplaneSpec{Networking: mesh.Networking{Address: address}}}
	}
	redirected := func(address string) *mesh.Dataplane {
		d := plain(address)
		d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{RedirectPortInbound: 15006}
		return d
	}
	tests := map[string]struct {
		d        *mesh.Dataplane
		in       mesh.Inbound
		known    bool
		accepted mesh.Addresses
		want     bool
	}{
		"not known":                         {plain("10.0.0.1"), mesh.Inbound{Port: 80}, false, "", true},
		"none":                              {plain("10.0.0.1"), mesh.Inbound{Port: 80}, true, "", false},
		"this one":                          {plain("10.0.0.1"), mesh.Inbound{Port: 80}, true, addresses("10.0.0.2:80", "10.0.0.1:80"), true},
		"another port":                      {plain("10.0.0.1"), mesh.Inbound{Port: 8}, true, addresses("10.0.0.1:80"), false},
		"an address of its own":             {plain("10.0.0.1"), mesh.Inbound{Port: 80, Address: "10.0.0.9"}, true, addresses("10.0.0.9:80"), true},
		"another form of the same address":  {plain("::ffff:10.0.0.1"), mesh.Inbound{Port: 80}, true, addresses("10.0.0.1:80"), true},
		"IPv6":                              {plain("fd00::1"), mesh.Inbound{Port: 80}, true, addresses("[fd00::1]:80"), true},
		"redirected":                        {redirected("10.0.0.1"), mesh.Inbound{Port: 80}, true, addresses("0.0.0.0:15006"), true},
		"redirected, IPv6 alone is refused": {redirected("10.0.0.1"), mesh.Inbound{Port: 80}, true, addresses("0.0.0.0:15006"), true},
		"redirected, IPv6":                  {redirected("fd00::1"), mesh.Inbound{Port: 80}, true, addresses("0.0.0.0:15006"), false},
		"no address":                        {plain("host"), mesh.Inbound{Port: 80}, true, addresses("10.0.0.1:80"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := mesh.Observation{ListenersKnown: tc.known, Listeners: tc.accepted}
			if got := o.Accepts(tc.d, &tc.in); got != tc.want {
				t.Errorf("Accepts() = %v, want %v", got, tc.want)
			}
		})
	}
}
