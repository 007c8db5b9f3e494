package lists

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestServiceEndpointsAreCountedByState(t *testing.T) {
	f := newFakes(t)
	view := f.View()
	m := view.Meshes["default"]
	web := *m.Services.Get("web")
	web.Endpoints = append(web.Endpoints,
		meshview.Endpoint{Address: netip.MustParseAddrPort("10.0.0.4:80"), Health: meshview.Draining, Proxy: "web-2", Sidecar: true},
		meshview.Endpoint{Address: netip.MustParseAddrPort("10.0.0.5:80"), Health: meshview.Draining, Proxy: "web-1", Sidecar: true})
	m.Services = m.Services.With("web", &web).With("empty", &meshview.Service{Mesh: "default", Name: "empty"})
	f.of.states = map[mesh.ID]*adminv1.AgentState{"default/web-2": {Phase: adminv1.AgentState_STOPPED}}
	want := map[string]float64{
		"default/empty/ready": 0, "default/empty/draining": 0, "default/empty/not-ready": 0, "default/empty/stopped": 0,
		"default/web/ready": 1, "default/web/draining": 2, "default/web/not-ready": 1, "default/web/stopped": 1,
	}
	if diff := cmp.Diff(want, collected(t, ServiceMetrics{f.View, &f.of})); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if got := collected(t, ServiceMetrics{func() *meshview.View { return nil }, &f.of}); len(got) > 0 {
		t.Errorf("before the first view: %v, want none", got)
	}
}

// TestServicesBeyondTheLimitAreSummed has a service without a ready endpoint, which comes first, and a service that is
// named like the label of the sum.
func TestServicesBeyondTheLimitAreSummed(t *testing.T) {
	f := newFakes(t)
	m := f.View().Meshes["default"]
	add := func(name string, h meshview.Health) {
		at := netip.MustParseAddrPort("10.0.0.1:80")
		m.Services = m.Services.With(name, &meshview.Service{Mesh: "default", Name: name, Endpoints: []meshview.Endpoint{{Address: at, Health: h}}})
	}
	for i := range maxMeasured {
		name := fmt.Sprintf("0-%04d", i)
		m.Services = m.Services.With(name, &meshview.Service{Mesh: "default", Name: name}) // scaled to zero
		add(fmt.Sprintf("a-%04d", i), meshview.Ready)
	}
	add("other", meshview.Ready)
	add("z", meshview.NotReady)
	got := collected(t, ServiceMetrics{f.View, &f.of})
	for key, want := range map[string]float64{"default/z/not-ready": 1, "default/a-1998/ready": 1, "default/other/ready": 3} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

// collected returns the values of the metric by "mesh/service/state".
func collected(t *testing.T, c ServiceMetrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			l := m.GetLabel() // sorted by name
			all[l[0].GetValue()+"/"+l[1].GetValue()+"/"+l[2].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return all
}
