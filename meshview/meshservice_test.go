package meshview

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// meshServiceOf returns a MeshService of mesh default.
func meshServiceOf(name string, by mesh.DataplaneSelector, ports ...mesh.MeshServicePort) *mesh.MeshService {
	return &mesh.MeshService{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name}, Spec: mesh.MeshServiceSpec{Selector: by, Ports: ports}}
}

func byLabels(pairs ...string) mesh.DataplaneSelector {
	labels := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return mesh.DataplaneSelector{DataplaneLabels: &mesh.LabelSelector{MatchLabels: labels}}
}

// labelled gives a Dataplane a label besides its workload, and its inbounds no tags.
func labelled(key, value string) option {
	return func(d *mesh.Dataplane) {
		d.Labels = map[string]string{mesh.LabelWorkload: d.Name[:len(d.Name)-2], key: value}
		for i := range d.Spec.Networking.Inbound {
			d.Spec.Networking.Inbound[i].Tags = nil
		}
	}
}

func inState(s mesh.InboundState) option {
	return func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].State = s }
}

// refersTo gives a Dataplane an outbound.
func refersTo(ref mesh.BackendRef) option {
	return func(d *mesh.Dataplane) {
		ref.Kind = string(mesh.KindMeshService)
		d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound, mesh.Outbound{Address: "127.0.0.1", Port: 10000, BackendRef: &ref})
	}
}

func TestMeshService(t *testing.T) {
	http := mesh.MeshServicePort{Port: 80, AppProtocol: mesh.ProtocolHTTP}
	app := byLabels("app", "api")
	at := func(address string, h Health) Endpoint {
		return Endpoint{Address: netip.MustParseAddrPort(address), Health: h, Sidecar: true}
	}
	id := func(workload string) []string {
		return []string{"spiffe://default.sonde.internal/workload/" + workload}
	}
	db := dataplane("db-1", "10.0.0.9", "db")
	tests := map[string]struct {
		objects []mesh.Object
		service string
		want    *Service // without Mesh and Name
	}{
		"by a label": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", labelled("app", "api")), db, meshServiceOf("api", app, http)}, service: "api_msvc_80",
			want: &Service{Protocol: "http", Identities: id("api"), Endpoints: []Endpoint{at("10.0.0.1:80", Ready)}},
		},
		"by tags, beside the service of the tags": {
			objects: []mesh.Object{db, meshServiceOf("db", mesh.DataplaneSelector{DataplaneTags: tags("db")}, mesh.MeshServicePort{Port: 5432, TargetPort: "80", AppProtocol: "tcp"})}, service: "db_msvc_5432",
			want: &Service{Protocol: "tcp", Identities: id("db"), Endpoints: []Endpoint{at("10.0.0.9:80", Ready)}},
		},
		"by name": {
			objects: []mesh.Object{db, dataplane("db-2", "10.0.0.8", "db"), meshServiceOf("first", mesh.DataplaneSelector{DataplaneRef: &mesh.DataplaneRef{Name: "db-1"}}, http)}, service: "first_msvc_80",
			want: &Service{Protocol: "http", Identities: id("db"), Endpoints: []Endpoint{at("10.0.0.9:80", Ready)}},
		},
		"states of inbounds": {
			objects: []mesh.Object{
				dataplane("api-1", "10.0.0.1", "api", labelled("app", "api"), inState(mesh.InboundNotReady)),
				dataplane("old-1", "10.0.0.2", "api", labelled("app", "api"), inState(mesh.InboundIgnored)), meshServiceOf("api", app, http),
			}, service: "api_msvc_80",
			want: &Service{Protocol: "http", Identities: append(id("api"), id("old")...), Endpoints: []Endpoint{at("10.0.0.1:80", NotReady)}},
		},
		"a port that no inbound has": {
			objects: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", labelled("app", "api")), meshServiceOf("api", app, mesh.MeshServicePort{Port: 90, AppProtocol: "tcp"})}, service: "api_msvc_90",
			want: &Service{Protocol: "tcp"},
		},
		"a MeshService that is not there": {
			objects: []mesh.Object{dataplane("web-1", "10.0.0.1", "web", refersTo(mesh.BackendRef{Name: "api", Port: 80}))}, service: "api_msvc_80",
			want: &Service{Protocol: "tcp", Unknown: true},
		},
		"labels that several have": {
			objects: []mesh.Object{
				dataplane("web-1", "10.0.0.1", "web", refersTo(mesh.BackendRef{Labels: map[string]string{"team": "x"}, Port: 80})), db,
				ofTeam("x", meshServiceOf("b", mesh.DataplaneSelector{DataplaneTags: tags("web")}, http)), ofTeam("x", meshServiceOf("a", mesh.DataplaneSelector{DataplaneTags: tags("db")}, http)),
			}, service: "team=x_msvc_80",
			want: &Service{Protocol: "http", Identities: id("db"), Endpoints: []Endpoint{at("10.0.0.9:80", Ready)}},
		},
		"the label of its name": {
			objects: []mesh.Object{
				dataplane("web-1", "10.0.0.1", "web", refersTo(mesh.BackendRef{Labels: map[string]string{"kuma.io/display-name": "db"}, Port: 80})), db,
				meshServiceOf("db", mesh.DataplaneSelector{DataplaneTags: tags("db")}, http),
			}, service: "kuma.io/display-name=db_msvc_80",
			want: &Service{Protocol: "http", Identities: id("db"), Endpoints: []Endpoint{at("10.0.0.9:80", Ready)}},
		},
		"labels that none has": {
			objects: []mesh.Object{dataplane("web-1", "10.0.0.1", "web", refersTo(mesh.BackendRef{Labels: map[string]string{"team": "x"}, Port: 80})), meshServiceOf("db", app, http)}, service: "team=x_msvc_80",
			want: &Service{Protocol: "tcp", Unknown: true},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.want.Mesh, tc.want.Name = "default", tc.service
			_, got := mustBuild(t, set(tc.objects...)).After.Service(mesh.MakeID("default", tc.service))
			if diff := cmp.Diff(tc.want, got, lists, forClients); diff != "" {
				t.Errorf("Service (-want +got):\n%s", diff)
			}
		})
	}
}

func ofTeam(team string, s *mesh.MeshService) *mesh.MeshService {
	s.Labels = map[string]string{"team": team}
	return s
}

// TestMeshServiceComesLater checks that a client of a MeshService gets its endpoints once the MeshService is added, and
// that a change of a Dataplane changes only the services that select it.
func TestMeshServiceComesLater(t *testing.T) {
	port := mesh.MeshServicePort{Port: 80, AppProtocol: mesh.ProtocolTCP}
	b := set(dataplane("web-1", "10.0.0.1", "web", refersTo(mesh.BackendRef{Name: "api", Port: 80})), dataplane("api-1", "10.0.0.2", "", labelled("app", "api")))
	mustBuild(t, b)
	api := dataplane("api-1", "10.0.0.2", "api", labelled("app", "api"))
	b.Set("files", meshServiceOf("api", byLabels("app", "api"), port))
	b.Set("files", meshServiceOf("other", byLabels("app", "other"), port))
	b.Set("files", api)
	c := mustBuild(t, b)
	if _, s := c.After.Service("default/api_msvc_80"); len(s.Serving()) != 1 {
		t.Errorf("with its MeshService and Dataplane the service is %+v", s)
	}
	b.Observe("default/api-1", mesh.Observation{Draining: true})
	want := Change{Endpoints: []mesh.ID{"default/api_msvc_80"}, Observed: []mesh.ID{"default/api-1"}}
	if diff := cmp.Diff(want, mustBuild(t, b), lists); diff != "" {
		t.Errorf("Change of a drain (-want +got):\n%s", diff)
	}
	b.Delete("files", mesh.Key{Kind: mesh.KindMeshService, Mesh: "default", Name: "api"})
	if _, s := mustBuild(t, b).After.Service("default/api_msvc_80"); s == nil || len(s.Endpoints) > 0 {
		t.Errorf("without its MeshService the service is %+v", s)
	}
}

// TestDataplaneIsComparedWithFewMeshServices checks that the MeshServices of a Dataplane are looked up, not compared
// one by one.
func TestDataplaneIsComparedWithFewMeshServices(t *testing.T) {
	m := newState(Options{}).touch(mesh.DefaultMesh)
	for _, name := range []string{"a", "b", "c", "d"} {
		m.setMeshService(name, meshServiceOf(name, byLabels("app", name, "zone", "z")))
	}
	compared := 0
	for _, c := range criteriaOf(dataplane("a-1", "10.0.0.1", "web", labelled("app", "a"))) {
		compared += len(m.byCriterion[c])
	}
	if compared != 1 {
		t.Errorf("it is compared with %d of 4 MeshServices, want 1", compared)
	}
}

func TestMeshServicesOfTheView(t *testing.T) {
	front, none := meshServiceOf("front", byLabels("app", "web")), meshServiceOf("none", byLabels("app", "no"))
	b := set(dataplane("web-2", "10.0.0.2", "web", labelled("app", "web")), dataplane("web-1", "10.0.0.1", "web", labelled("app", "web")), front, none)
	first := mustBuild(t, b).After.Mesh(mesh.DefaultMesh)
	want := map[string]*MeshService{"front": {Object: front, Dataplanes: []string{"web-1", "web-2"}}, "none": {Object: none}}
	if diff := cmp.Diff(want, first.MeshServices.toMap(), lists); diff != "" {
		t.Errorf("MeshServices (-want +got):\n%s", diff)
	}
	b.Delete("files", mesh.Key{Kind: mesh.KindDataplane, Mesh: mesh.DefaultMesh, Name: "web-1"})
	b.Delete("files", none.Key())
	second := mustBuild(t, b).After.Mesh(mesh.DefaultMesh)
	if diff := cmp.Diff(map[string]*MeshService{"front": {Object: front, Dataplanes: []string{"web-2"}}}, second.MeshServices.toMap(), lists); diff != "" {
		t.Errorf("MeshServices after removals (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, first.MeshServices.toMap(), lists); diff != "" {
		t.Errorf("the view before has changed (-want +got):\n%s", diff)
	}
}
