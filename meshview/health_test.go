package meshview

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestInboundHealth(t *testing.T) {
	tests := map[string]struct {
		requireJoin bool
		declared    []option
		observed    mesh.Observation
		want        InboundHealth
	}{
		"without agents nobody has to join":       {want: InboundHealth{Ready, NoReason}},
		"never joined":                            {requireJoin: true, want: InboundHealth{NotReady, NeverJoined}},
		"joined, of an unknown workload":          {requireJoin: true, observed: mesh.Observation{Joined: true}, want: InboundHealth{Ready, NoReason}},
		"joined, of its workload":                 {requireJoin: true, observed: mesh.Observation{Joined: true, Path: "/workload/api"}, want: InboundHealth{Ready, NoReason}},
		"joined, of another workload":             {requireJoin: true, observed: mesh.Observation{Joined: true, Path: "/workload/web"}, want: InboundHealth{NotReady, OtherWorkload}},
		"the label is the workload":               {declared: []option{workload("web")}, observed: mesh.Observation{Path: "/workload/api"}, want: InboundHealth{NotReady, OtherWorkload}},
		"draining":                                {requireJoin: true, observed: mesh.Observation{Joined: true, Draining: true}, want: InboundHealth{Draining, NoReason}},
		"draining with another workload":          {observed: mesh.Observation{Draining: true, Path: "/workload/web"}, want: InboundHealth{NotReady, OtherWorkload}},
		"what is declared counts before all else": {requireJoin: true, declared: []option{unready}, want: InboundHealth{NotReady, DeclaredNotReady}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := NewBuilder(Options{RequireJoin: tc.requireJoin})
			b.Set("files", dataplane("api-1", "10.0.0.1", "api", tc.declared...))
			b.Observe("default/api-1", tc.observed)
			view := mustBuild(t, b).After
			_, p := view.Proxy("default/api-1")
			if diff := cmp.Diff([]InboundHealth{tc.want}, p.Inbounds); diff != "" {
				t.Errorf("Proxy.Inbounds (-want +got):\n%s", diff)
			}
			_, s := view.Service("default/api")
			if e := s.Endpoints[0]; e.Health != tc.want.Health || e.Reason != tc.want.Reason || e.Proxy != "api-1" {
				t.Errorf("endpoint is %+v, want %+v of api-1", e, tc.want)
			}
		})
	}
}

func TestEndpointsOfServicesNeedNoJoin(t *testing.T) {
	b := NewBuilder(Options{RequireJoin: true})
	b.Set("files", service("db", "10.0.0.9"))
	if _, s := mustBuild(t, b).After.Service("default/db"); s.Endpoints[0].Health != Ready {
		t.Errorf("endpoint is %+v, want Ready", s.Endpoints[0])
	}
}
