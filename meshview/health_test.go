package meshview

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Observations of proxies whose application does not serve.
var (
	notServing           = mesh.Observation{NotServing: "10.0.0.1:80"}
	drainingNotServing   = mesh.Observation{NotServing: "10.0.0.1:80", Draining: true}
	noListenerNotServing = mesh.Observation{NotServing: "10.0.0.1:80", ListenersKnown: true}
)

func TestInboundHealth(t *testing.T) {
	tests := map[string]struct {
		requireJoin bool
		declared    []option
		observed    mesh.Observation
		want        InboundHealth
	}{
		"without agents no join is needed":        {want: InboundHealth{Ready, NoReason}},
		"never joined":                            {requireJoin: true, want: InboundHealth{NotReady, NeverJoined}},
		"joined, of an unknown workload":          {requireJoin: true, observed: mesh.Observation{Joined: true}, want: InboundHealth{Ready, NoReason}},
		"joined, of its workload":                 {requireJoin: true, observed: mesh.Observation{Joined: true, Path: "/workload/api"}, want: InboundHealth{Ready, NoReason}},
		"joined, of another workload":             {requireJoin: true, observed: mesh.Observation{Joined: true, Path: "/workload/web"}, want: InboundHealth{NotReady, OtherWorkload}},
		"the label is the workload":               {declared: []option{workload("web")}, observed: mesh.Observation{Path: "/workload/api"}, want: InboundHealth{NotReady, OtherWorkload}},
		"draining":                                {requireJoin: true, observed: mesh.Observation{Joined: true, Draining: true}, want: InboundHealth{Draining, NoReason}},
		"expired":                                 {requireJoin: true, observed: mesh.Observation{Joined: true, Expired: true}, want: InboundHealth{Draining, CertificateExpired}},
		"expired, draining and held":              {observed: mesh.Observation{Expired: true, Draining: true, Held: true}, want: InboundHealth{Draining, CertificateExpired}},
		"expired, and of another workload":        {observed: mesh.Observation{Expired: true, Path: "/workload/web"}, want: InboundHealth{NotReady, OtherWorkload}},
		"held":                                    {requireJoin: true, observed: mesh.Observation{Joined: true, Held: true}, want: InboundHealth{Draining, LivenessHeld}},
		"held, and draining":                      {observed: mesh.Observation{Held: true, Draining: true}, want: InboundHealth{Draining, NoReason}},
		"held, and drained by an administrator":   {observed: mesh.Observation{Held: true, Administrator: "update"}, want: InboundHealth{Draining, NoReason}},
		"held, and declared not ready":            {declared: []option{unready}, observed: mesh.Observation{Held: true}, want: InboundHealth{NotReady, DeclaredNotReady}},
		"held, and no listener":                   {observed: mesh.Observation{Held: true, ListenersKnown: true}, want: InboundHealth{NotReady, ListenerNotAccepted}},
		"draining with another workload":          {observed: mesh.Observation{Draining: true, Path: "/workload/web"}, want: InboundHealth{NotReady, OtherWorkload}},
		"probed, and nothing against it":          {requireJoin: true, declared: []option{probed}, observed: mesh.Observation{Joined: true}, want: InboundHealth{Ready, NoReason}},
		"probed, and not serving":                 {declared: []option{probed}, observed: notServing, want: InboundHealth{NotReady, ApplicationNotReady}},
		"not serving, and draining":               {declared: []option{probed}, observed: drainingNotServing, want: InboundHealth{NotReady, ApplicationNotReady}},
		"not serving, and never joined":           {requireJoin: true, declared: []option{probed}, observed: notServing, want: InboundHealth{NotReady, NeverJoined}},
		"not serving, and declared so":            {declared: []option{probed, unready}, observed: notServing, want: InboundHealth{NotReady, DeclaredNotReady}},
		"not serving, and no listener":            {declared: []option{probed}, observed: noListenerNotServing, want: InboundHealth{NotReady, ListenerNotAccepted}},
		"what is known without a probe":           {observed: notServing, want: InboundHealth{Ready, NoReason}},
		"another inbound does not serve":          {declared: []option{probed}, observed: mesh.Observation{NotServing: "10.0.0.1:81"}, want: InboundHealth{Ready, NoReason}},
		"a pod is asked by the kubelet":           {declared: []option{probed, func(d *mesh.Dataplane) { d.Identity.Instance = "uid" }}, observed: notServing, want: InboundHealth{Ready, NoReason}},
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
