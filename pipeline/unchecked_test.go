package pipeline

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestUncheckedEndpointsAreCounted has one endpoint with a probe, and two without.
func TestUncheckedEndpointsAreCounted(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{})
	for name, probe := range map[string]*mesh.ServiceProbe{"web-1": {}, "web-2": nil, "web-3": nil} {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: name}}
		d.Spec.Networking.Address = strings.Replace(name, "web-", "10.0.0.", 1)
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}, ServiceProbe: probe}}
		d.SetDefaults()
		b.Set("test", d)
	}
	var view *meshview.View
	c := uncheckedEndpoints{func() *meshview.View { return view }}
	if n := testutil.CollectAndCount(c); n != 0 {
		t.Errorf("before the first view there are %d metrics, want none", n)
	}
	change, _ := b.Build()
	view = change.After
	if n := testutil.ToFloat64(c); n != 2 {
		t.Errorf("sonde_endpoints_unchecked is %v, want 2", n)
	}
}
