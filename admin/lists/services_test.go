package lists

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// meshServiceOf returns a MeshService of mesh default for the Dataplanes with the label app=web.
func meshServiceOf(name string, target mesh.TargetPort, ports ...uint32) *mesh.MeshService {
	s := &mesh.MeshService{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name, Labels: map[string]string{"team": "x"}}}
	s.Spec.Selector.DataplaneLabels = &mesh.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for _, port := range ports {
		s.Spec.Ports = append(s.Spec.Ports, mesh.MeshServicePort{Port: port, TargetPort: target})
	}
	return s
}

// reaching adds an outbound to a Dataplane.
func reaching(d *mesh.Dataplane, ref mesh.BackendRef) *mesh.Dataplane {
	ref.Kind = string(mesh.KindMeshService)
	d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound, mesh.Outbound{Port: 10001, BackendRef: &ref})
	return d
}

// listening returns a Dataplane of mesh default with the label app=web, and inbounds in a state.
func listening(name string, state mesh.InboundState, ports ...uint32) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name, Labels: map[string]string{"app": "web"}}}
	d.Spec.Networking.Address = "10.0.0.1"
	for _, port := range ports {
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: port, Name: "main", State: state, Tags: mesh.Tags{mesh.TagService: "web"}})
	}
	return d
}

func TestNoEndpoints(t *testing.T) {
	named := func(port uint32) mesh.BackendRef { return mesh.BackendRef{Name: "front", Port: port} }
	client := func(ref mesh.BackendRef) *mesh.Dataplane { return reaching(listening("client", "", 1), ref) }
	calls := "calls fail: named by an outbound of client"
	byRef := meshServiceOf("front", "", 80)
	byRef.Spec.Selector = mesh.DataplaneSelector{DataplaneRef: &mesh.DataplaneRef{Name: "web-9"}}
	byTags := meshServiceOf("front", "", 80)
	byTags.Spec.Selector = mesh.DataplaneSelector{DataplaneTags: mesh.Tags{"kuma.io/service": "no", "a": "b"}}
	byTag := listening("client", "", 1)
	byTag.Spec.Networking.Outbound = []mesh.Outbound{{Port: 10001, Tags: mesh.Tags{mesh.TagService: "wbe"}}, {Port: 10002, Tags: mesh.Tags{mesh.TagService: "front"}}}
	for name, tc := range map[string]struct {
		objects []mesh.Object
		service string
		want    []string
	}{
		"no such MeshService":     {[]mesh.Object{client(mesh.BackendRef{Name: "fron", Port: 80}), meshServiceOf("front", "", 80)}, "fron_msvc_80", []string{`there is no MeshService "fron": did you mean "front"?`, calls}},
		"no MeshService at all":   {[]mesh.Object{client(named(80))}, "front_msvc_80", []string{`there is no MeshService "front"`, calls}},
		"no such labels":          {[]mesh.Object{client(mesh.BackendRef{Labels: map[string]string{"team": "y", "a": "b"}, Port: 80}), meshServiceOf("front", "", 80)}, "a=b,team=y_msvc_80", []string{"no MeshService has the labels a=b,team=y", calls}},
		"no such port":            {[]mesh.Object{client(named(90)), meshServiceOf("front", "", 80, 81)}, "front_msvc_90", []string{`MeshService "front" has no port 90: it has 80, 81`, calls}},
		"no port at all":          {[]mesh.Object{client(named(90)), meshServiceOf("front", "")}, "front_msvc_90", []string{`MeshService "front" has no port 90: it has none`, calls}},
		"no such port, by labels": {[]mesh.Object{client(mesh.BackendRef{Labels: map[string]string{"team": "x"}, Port: 90}), meshServiceOf("front", "", 80), meshServiceOf("back", "", 81)}, "team=x_msvc_90", []string{`MeshService "back" has no port 90: it has 81`, calls}},
		"no Dataplane, by label":  {[]mesh.Object{meshServiceOf("front", "", 80)}, "front_msvc_80", []string{`MeshService "front" selects no Dataplane: its selector is dataplaneLabels app=web`}},
		"no Dataplane, by name":   {[]mesh.Object{byRef}, "front_msvc_80", []string{`MeshService "front" selects no Dataplane: its selector is dataplaneRef web-9`}},
		"no Dataplane, by tags":   {[]mesh.Object{byTags}, "front_msvc_80", []string{`MeshService "front" selects no Dataplane: its selector is dataplaneTags a=b,kuma.io/service=no`}},
		"no inbound": {
			[]mesh.Object{listening("web-1", "", 8080, 8081), listening("web-2", "", 8080), meshServiceOf("front", "http", 80)}, "front_msvc_80",
			[]string{`port 80 of MeshService "front" has targetPort http, which no inbound of the Dataplanes that it selects (web-1, web-2) has: they have 8080 (main), 8081 (main)`},
		},
		"no inbound, by default":      {[]mesh.Object{listening("web-1", ""), meshServiceOf("front", "", 80)}, "front_msvc_80", []string{`port 80 of MeshService "front" has targetPort 80, which no inbound of the Dataplanes that it selects (web-1) has: they have no inbound`}},
		"inbounds that are Ignored":   {[]mesh.Object{listening("web-1", mesh.InboundIgnored, 80), meshServiceOf("front", "", 80)}, "front_msvc_80", []string{`the inbounds of MeshService "front", port 80, have state Ignored`}},
		"by tags":                     {[]mesh.Object{byTag, listening("web-1", "", 80)}, "wbe", []string{`no Dataplane has an inbound with kuma.io/service wbe, and there is no such Service: did you mean "web"?`, calls}},
		"by tags, of a MeshService":   {[]mesh.Object{byTag, meshServiceOf("front", "", 80)}, "front", []string{"no Dataplane has an inbound with kuma.io/service front, and there is no such Service; a MeshService of that name is reached by backendRef", calls}},
		"by tags, Ignored":            {[]mesh.Object{listening("web-1", mesh.InboundIgnored, 80)}, "web", []string{"its inbounds have state Ignored"}},
		"a Service without endpoints": {[]mesh.Object{&mesh.Service{Meta: mesh.Meta{Name: "db"}}}, "db", []string{"its Service names no endpoint"}},
		"with an endpoint":            {[]mesh.Object{listening("web-1", "", 80)}, "web", nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			v := viewOf(tc.objects...)
			f.View = func() *meshview.View { return v }
			got, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Name: tc.service}})
			if err != nil || len(got.GetServices()) != 1 {
				t.Fatalf("ListServices() = %v, %v", got, err)
			}
			if diff := cmp.Diff(tc.want, got.GetServices()[0].GetReasons()); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
		})
	}
}

func TestListMeshServices(t *testing.T) {
	f := newFakes(t)
	v := viewOf(listening("web-1", "", 80), reaching(listening("client", "", 1), mesh.BackendRef{Name: "front", Port: 90}), meshServiceOf("front", "", 80, 81), meshServiceOf("back", ""))
	f.View = func() *meshview.View { return v }
	got, err := f.ListMeshServices(t.Context(), &adminv1.ListMeshServicesRequest{Filter: &adminv1.Filter{Name: "front"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []*adminv1.MeshService{{
		Object:   got.GetMeshServices()[0].GetObject(), // as in the other cases
		Selector: "dataplaneLabels app=web", Dataplanes: []string{"client", "web-1"},
		Ports: []*adminv1.MeshServicePort{
			{Service: "front_msvc_80", Endpoints: 1, Ready: 1, Unchecked: 1, Serving: 1},
			{Service: "front_msvc_81", Reasons: []string{`port 81 of MeshService "front" has targetPort 81, which no inbound of the Dataplanes that it selects (client, web-1) has: they have 1 (main), 80 (main)`}},
		},
	}}
	if diff := cmp.Diff(want, got.GetMeshServices(), protocmp.Transform()); diff != "" {
		t.Errorf("ListMeshServices() (-want +got):\n%s", diff)
	}
	ports, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Name: "front"}, Ports: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range ports.GetServices() {
		names = append(names, s.GetName())
	}
	if diff := cmp.Diff([]string{"front_msvc_80", "front_msvc_81", "front_msvc_90"}, names); diff != "" {
		t.Errorf("ListServices() with ports (-want +got):\n%s", diff)
	}
	dataplanes, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{Filter: &adminv1.Filter{Name: "web-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"front_msvc_80", "web"}, dataplanes.GetDataplanes()[0].GetInbounds()[0].GetServices()); diff != "" {
		t.Errorf("services of the inbound (-want +got):\n%s", diff)
	}
}

// TestAllAreHeld checks which endpoints get traffic if all drain, and if one is ready.
func TestAllAreHeld(t *testing.T) {
	for name, tc := range map[string]struct {
		held    []string
		stopped string // proxy whose agent has drained and exited
		traffic []bool
		serves  []string // services of web-1
		serving uint32
	}{
		"none is ready":                {[]string{"web-1", "web-2"}, "", []bool{true, true}, []string{"front_msvc_80", "web"}, 2},
		"one is ready":                 {[]string{"web-1"}, "", []bool{false, true}, nil, 1},
		"none is ready, one has ended": {[]string{"web-1", "web-2"}, "web-1", []bool{false, true}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			b := meshview.NewBuilder(meshview.Options{})
			second := listening("web-2", "", 80)
			second.Spec.Networking.Address = "10.0.0.2"
			for _, o := range []mesh.Object{listening("web-1", "", 80), second, meshServiceOf("front", "", 80)} {
				o.SetDefaults()
				b.Set("test", o)
			}
			for _, held := range tc.held {
				b.Observe(mesh.MakeID(mesh.DefaultMesh, held), mesh.Observation{Held: true})
			}
			c, _ := b.Build()
			f.View = func() *meshview.View { return c.After }
			f.of.states = map[mesh.ID]*adminv1.AgentState{mesh.MakeID(mesh.DefaultMesh, tc.stopped): {Phase: adminv1.AgentState_STOPPED}}
			services, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Name: "web"}})
			if err != nil {
				t.Fatal(err)
			}
			var traffic []bool
			for _, e := range services.GetServices()[0].GetEndpoints() {
				traffic = append(traffic, e.GetGetsTraffic())
			}
			if diff := cmp.Diff(tc.traffic, traffic); diff != "" {
				t.Errorf("endpoints that get traffic (-want +got):\n%s", diff)
			}
			meshServices, err := f.ListMeshServices(t.Context(), &adminv1.ListMeshServicesRequest{})
			if err != nil || meshServices.GetMeshServices()[0].GetPorts()[0].GetServing() != tc.serving {
				t.Errorf("ListMeshServices() = %v, %v, want %d that serve", meshServices, err, tc.serving)
			}
			dataplanes, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{Filter: &adminv1.Filter{Name: "web-1"}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.serves, dataplanes.GetDataplanes()[0].GetInbounds()[0].GetServes()); diff != "" {
				t.Errorf("services that web-1 serves (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAListSaysWhatMayHaveBeenMeant(t *testing.T) {
	for name, tc := range map[string]struct {
		filter *adminv1.Filter
		want   string
	}{
		"a near name":             {&adminv1.Filter{Name: "Web_1"}, "web-1"},
		"of another mesh":         {&adminv1.Filter{Mesh: "other", Name: "web2"}, "web-1"},
		"nothing is near":         {&adminv1.Filter{Name: "database"}, ""},
		"something has that name": {&adminv1.Filter{Name: "web-2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			got, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{Filter: tc.filter})
			if err != nil || got.GetTail().GetNear() != tc.want {
				t.Errorf("ListDataplanes() suggests %q, %v, want %q", got.GetTail().GetNear(), err, tc.want)
			}
		})
	}
}
