package since

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestSince follows an inbound, an outbound and a service from the first view of a replica on.
func TestSince(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{RequireJoin: true})
	s := New()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	in, out := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("127.0.0.1:10001")
	const proxy, service mesh.ID = "default/web-1", "default/web"
	step := func(o *mesh.Observation) {
		now = now.Add(time.Minute)
		if o != nil {
			b.Observe(proxy, *o)
		}
		if c, changed := b.Build(); changed {
			s.Follow(c, now)
		}
	}
	expect := func(what string, inbound, outbound, without time.Time) {
		t.Helper()
		for name, ok := range map[string][2]time.Time{
			"inbound": {s.Inbound(proxy, in), inbound}, "outbound": {s.Outbound(proxy, out), outbound}, "service": {s.Without(service), without},
		} {
			if !ok[0].Equal(ok[1]) {
				t.Errorf("%s: the %s is so since %s, want %s", what, name, ok[0], ok[1])
			}
		}
	}
	dataplane := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "web-1"}}
	dataplane.Spec.Networking = mesh.Networking{
		Address:  "10.0.0.1",
		Inbound:  []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}}},
		Outbound: []mesh.Outbound{{Port: 10001, Tags: mesh.Tags{mesh.TagService: "db"}}},
	}
	dataplane.SetDefaults()
	b.Set("", dataplane)
	step(nil)
	expect("in the first view it is not known since when it has not joined", time.Time{}, time.Time{}, time.Time{})

	joined := mesh.Observation{Joined: true, Path: "/workload/web"}
	step(&joined)
	up := now
	expect("it has joined, and is ready", up, time.Time{}, time.Time{})

	joined.OutboundsKnown = true
	step(&joined)
	refused := now
	expect("its Envoy refuses the outbound", up, refused, time.Time{})

	joined.Joined = false
	step(&joined)
	down := now
	expect("it is no longer ready", down, refused, down)
	joined.OutboundsKnown = false
	step(&joined)
	expect("the outbound alone has changed", down, now, down)

	b.Delete("", dataplane.Key())
	step(nil)
	expect("it is gone", time.Time{}, time.Time{}, time.Time{})
	if n := len(s.inbounds) + len(s.outbounds); n > 0 {
		t.Errorf("%d addresses of a proxy that is gone are kept", n)
	}
}
