package meshview_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestUnchecked has one endpoint of a service, which is ready unless the inbound is not.
func TestUnchecked(t *testing.T) {
	inbound := func(change func(*mesh.Dataplane, *mesh.Inbound)) mesh.Object {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "web-1"}}
		d.Spec.Networking.Address = "10.0.0.1"
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}}}
		change(d, &d.Spec.Networking.Inbound[0])
		d.SetDefaults()
		return d
	}
	service := &mesh.Service{Meta: mesh.Meta{Mesh: "default", Name: "web"}}
	service.Spec.Endpoints = []mesh.ServiceEndpoint{{Address: "10.0.0.1", Port: 80}}
	service.SetDefaults()
	for name, tc := range map[string]struct {
		object     mesh.Object
		kubernetes bool
		want       bool
	}{
		"without a probe":                 {inbound(func(*mesh.Dataplane, *mesh.Inbound) {}), false, true},
		"declared ready, without a probe": {inbound(func(_ *mesh.Dataplane, in *mesh.Inbound) { in.Health = &mesh.Health{Ready: new(true)} }), false, true},
		"with a probe":                    {inbound(func(_ *mesh.Dataplane, in *mesh.Inbound) { in.ServiceProbe = &mesh.ServiceProbe{} }), false, false},
		"not ready, without a probe":      {inbound(func(_ *mesh.Dataplane, in *mesh.Inbound) { in.State = mesh.InboundNotReady }), false, false},
		"of a pod": {inbound(func(d *mesh.Dataplane, _ *mesh.Inbound) {
			d.Identity = mesh.Identity{Path: "/ns/shop/sa/web", Instance: "1"}
		}), true, false},
		"written, on Kubernetes":     {inbound(func(*mesh.Dataplane, *mesh.Inbound) {}), true, true},
		"of a Service in a file":     {service, false, true},
		"of a Service of Kubernetes": {service, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := meshview.NewBuilder(meshview.Options{ServicesChecked: tc.kubernetes})
			b.Set("test", tc.object)
			change, _ := b.Build()
			v := change.After
			m := v.Mesh("default")
			if got := v.Unchecked(m, m.Services.Get("web").Endpoints[0]); got != tc.want {
				t.Errorf("Unchecked() = %t, want %t", got, tc.want)
			}
		})
	}
}
