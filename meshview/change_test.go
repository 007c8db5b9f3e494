package meshview

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestChange(t *testing.T) {
	draining := mesh.Observation{Draining: true}
	tests := map[string]struct {
		before []mesh.Object
		step   func(b *Builder)
		want   Change // only the lists
		none   bool   // there is no Change
	}{
		"an endpoint that turns unready is in Endpoints, and its proxy in Observed": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), dataplane("web-1", "10.0.0.2", "", calls("api"))},
			step:   func(b *Builder) { b.Set("files", dataplane("api-1", "10.0.0.1", "api", unready)) },
			want:   Change{Endpoints: []mesh.ID{"default/api"}, Observed: []mesh.ID{"default/api-1"}},
		},
		"so is one that drains": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Observe("default/api-1", draining) },
			want:   Change{Endpoints: []mesh.ID{"default/api"}, Observed: []mesh.ID{"default/api-1"}},
		},
		"draining without an inbound is in Observed alone": {
			before: []mesh.Object{dataplane("web-1", "10.0.0.1", "", calls("api"))},
			step:   func(b *Builder) { b.Observe("default/web-1", draining) },
			want:   Change{Observed: []mesh.ID{"default/web-1"}},
		},
		"so is one whose certificate names another workload": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Observe("default/api-1", mesh.Observation{Joined: true, Path: "/workload/web"}) },
			want:   Change{Endpoints: []mesh.ID{"default/api"}, Observed: []mesh.ID{"default/api-1"}},
		},
		"the reason of an endpoint is in Observed alone": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api", unready)},
			step: func(b *Builder) {
				b.Observe("default/api-1", mesh.Observation{Path: "/workload/web"})
				b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
			},
			want: Change{Observed: []mesh.ID{"default/api-1"}},
		},
		"whose endpoint it is changes the proxies alone": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), dataplane("api-2", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Delete("files", dataplane("api-1", "", "").Key()) },
			want:   Change{Proxies: []mesh.ID{"default/api-1"}},
		},
		"draining of an unknown proxy is no change": {
			step: func(b *Builder) { b.Observe("default/api-1", draining) },
			none: true,
		},
		"an equal object is no change": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), service("db", "10.0.0.9")},
			step: func(b *Builder) {
				b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
				b.Set("files", service("db", "10.0.0.9"))
			},
			none: true,
		},
		"an object that comes back before the next Build is no change": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api"), service("db", "10.0.0.9")},
			step: func(b *Builder) {
				b.Delete("files", dataplane("api-1", "10.0.0.1", "api").Key())
				b.Set("kubernetes", dataplane("api-1", "10.0.0.1", "api"))
			},
			none: true,
		},
		"deleting what is not there is no change": {
			step: func(b *Builder) { b.Delete("files", service("db").Key()) },
			none: true,
		},
		"a second replica of the same workload": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Set("files", dataplane("api-2", "10.0.0.2", "api")) },
			want:   Change{Endpoints: []mesh.ID{"default/api"}, Proxies: []mesh.ID{"default/api-2"}},
		},
		"a replica of another workload brings an identity": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Set("files", dataplane("api-2", "10.0.0.2", "api", workload("canary"))) },
			want: Change{
				Services: []mesh.ID{"default/api"}, Endpoints: []mesh.ID{"default/api"}, Proxies: []mesh.ID{"default/api-2"},
			},
		},
		"the first sidecar of a plain service": {
			before: []mesh.Object{service("db", "10.0.0.9", "10.0.0.10")},
			step:   func(b *Builder) { b.Set("files", dataplane("db-1", "10.0.0.9", "db")) },
			want: Change{
				Services: []mesh.ID{"default/db"}, Endpoints: []mesh.ID{"default/db"}, Proxies: []mesh.ID{"default/db-1"},
			},
		},
		"a further sidecar of it, of the same workload": {
			before: []mesh.Object{service("db", "10.0.0.9", "10.0.0.10"), dataplane("db-1", "10.0.0.9", "db")},
			step:   func(b *Builder) { b.Set("files", dataplane("db-2", "10.0.0.10", "db")) },
			want:   Change{Endpoints: []mesh.ID{"default/db"}, Proxies: []mesh.ID{"default/db-2"}},
		},
		"a protocol that changes": {
			before: []mesh.Object{dataplane("api-1", "10.0.0.1", "api")},
			step:   func(b *Builder) { b.Set("files", dataplane("api-1", "10.0.0.1", "api", speaks(mesh.ProtocolHTTP))) },
			want:   Change{Services: []mesh.ID{"default/api"}, Proxies: []mesh.ID{"default/api-1"}},
		},
		"an outbound to an unknown service": {
			before: []mesh.Object{dataplane("web-1", "10.0.0.2", "web")},
			step:   func(b *Builder) { b.Set("files", dataplane("web-1", "10.0.0.2", "web", calls("api"))) },
			want: Change{
				Services: []mesh.ID{"default/api"}, Endpoints: []mesh.ID{"default/api"}, Proxies: []mesh.ID{"default/web-1"}, Unknown: []mesh.ID{"default/api"},
			},
		},
		"the service that was called before it came": {
			before: []mesh.Object{dataplane("web-1", "10.0.0.2", "web", calls("api"))},
			step:   func(b *Builder) { b.Set("files", dataplane("api-1", "10.0.0.1", "api")) },
			want: Change{
				Services: []mesh.ID{"default/api"}, Endpoints: []mesh.ID{"default/api"}, Proxies: []mesh.ID{"default/api-1"}, Unknown: []mesh.ID{"default/api"},
			},
		},
		"a service with a virtual address is seen by all redirected proxies": {
			before: []mesh.Object{dataplane("a", "10.0.0.1", "a", transparent), dataplane("b", "10.0.0.2", "b", transparent), dataplane("c", "10.0.0.3", "c")},
			step:   func(b *Builder) { b.Set("files", service("db", "240.0.0.1:80")) },
			want: Change{
				Services: []mesh.ID{"default/db"}, Endpoints: []mesh.ID{"default/db"}, Proxies: []mesh.ID{"default/a", "default/b"},
			},
		},
		"a second virtual address": {
			before: []mesh.Object{dataplane("a", "10.0.0.1", "a", transparent), service("db", "240.0.0.1:80")},
			step:   func(b *Builder) { b.Set("files", service("db", "240.0.0.1:80", "240.0.0.2:80")) },
			want:   Change{Services: []mesh.ID{"default/db"}},
		},
		"the last virtual address goes, but one proxy has an outbound": {
			before: []mesh.Object{
				dataplane("a", "10.0.0.1", "a", transparent), dataplane("b", "10.0.0.2", "b", transparent, calls("db")), service("db", "240.0.0.1:80"),
			},
			step: func(b *Builder) { b.Delete("files", service("db").Key()) },
			want: Change{Services: []mesh.ID{"default/db"}, Proxies: []mesh.ID{"default/a"}, Unknown: []mesh.ID{"default/db"}},
		},
		"mTLS comes on": {
			before: []mesh.Object{meshOf("default", ""), dataplane("a", "10.0.0.1", "a"), service("db", "10.0.0.9")},
			step:   func(b *Builder) { b.Set("files", meshOf("default", mesh.ModeStrict)) },
			want:   Change{Services: []mesh.ID{"default/a", "default/db"}, Proxies: []mesh.ID{"default/a"}},
		},
		"a Mesh changes without its mode": {
			before: []mesh.Object{meshOf("default", mesh.ModeStrict), dataplane("a", "10.0.0.1", "a")},
			step: func(b *Builder) {
				m := meshOf("default", mesh.ModeStrict)
				m.Labels = map[string]string{"team": "x"}
				b.Set("files", m)
			},
		},
		"the Mesh that a Dataplane waited for": {
			before: []mesh.Object{meshOf("default", ""), dataplane("a", "10.0.0.1", "a", inMesh("prod"))},
			step:   func(b *Builder) { b.Set("files", meshOf("prod", mesh.ModeStrict)) },
			want: Change{
				Services: []mesh.ID{"prod/a"}, Endpoints: []mesh.ID{"prod/a"}, Proxies: []mesh.ID{"prod/a"},
			},
		},
		"a Mesh that goes takes all with it": {
			before: []mesh.Object{meshOf("default", ""), meshOf("prod", ""), dataplane("a", "10.0.0.1", "a", inMesh("prod"))},
			step:   func(b *Builder) { b.Delete("files", meshOf("prod", "").Key()) },
			want: Change{
				Services: []mesh.ID{"prod/a"}, Endpoints: []mesh.ID{"prod/a"}, Proxies: []mesh.ID{"prod/a"},
			},
		},
		"the implied mesh ends with the first Mesh": {
			before: []mesh.Object{dataplane("a", "10.0.0.1", "a")},
			step:   func(b *Builder) { b.Set("files", meshOf("prod", "")) },
			want: Change{
				Services: []mesh.ID{"default/a"}, Endpoints: []mesh.ID{"default/a"}, Proxies: []mesh.ID{"default/a"},
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := set(tc.before...)
			before := mustBuild(t, b).After
			tc.step(b)
			got, ok := b.Build()
			if ok == tc.none {
				t.Fatalf("Build() = %v, %v", got, ok)
			}
			if tc.none {
				return
			}
			if diff := cmp.Diff(tc.want, got, lists); diff != "" {
				t.Errorf("Change (-want +got):\n%s", diff)
			}
			if got.Before != before || got.After.Generation != before.Generation+1 {
				t.Errorf("Before is not the last view, or Generation %d follows %d", got.After.Generation, before.Generation)
			}
		})
	}
}

func TestUnchangedPartsAreShared(t *testing.T) {
	b := set(meshOf("default", ""), meshOf("prod", ""), dataplane("a", "10.0.0.1", "a", inMesh("prod")),
		dataplane("api-1", "10.0.0.1", "api"), dataplane("web-1", "10.0.0.2", "web"))
	before := mustBuild(t, b).After
	b.Set("files", dataplane("api-1", "10.0.0.1", "api", unready))
	after := mustBuild(t, b).After
	if before.Meshes["prod"] != after.Meshes["prod"] {
		t.Error("a mesh that did not change is a new one")
	}
	was, is := before.Meshes["default"], after.Meshes["default"]
	if was.Services.Get("web") != is.Services.Get("web") || was.Proxies.Get("web-1") != is.Proxies.Get("web-1") {
		t.Error("a service or proxy that did not change is a new one")
	}
	if was.Services.Get("api").Endpoints[0].Health != Ready || was.Proxies.Get("api-1") == is.Proxies.Get("api-1") {
		t.Error("the view before has changed, or the view after has the old Dataplane")
	}
}

func TestScopes(t *testing.T) {
	b := set(
		service("db", "240.0.0.1:80"), service("cache", "240.0.0.2:80"), service("hidden", "10.0.0.9"),
		dataplane("t1", "10.0.0.1", "", transparent), dataplane("t2", "10.0.0.2", "", transparent, calls("db")),
		dataplane("t3", "10.0.0.3", "", transparent, calls("hidden", "db")), dataplane("t4", "10.0.0.4", "", transparent, calls("hidden")),
		dataplane("o1", "10.0.0.5", "", calls("hidden", "db", "hidden")), dataplane("o2", "10.0.0.6", "", calls("db", "hidden")),
		dataplane("o3", "10.0.0.7", "", calls("cache", "db")), dataplane("n", "10.0.0.8", ""),
		dataplane("r1", "10.0.0.9", "", reaches("db", "hidden", "unknown")), dataplane("r0", "10.0.0.10", "", reaches(), calls("hidden")),
	)
	view := mustBuild(t, b).After
	want := map[string][]string{
		"t1": {"cache", "db"}, "t2": {"cache", "db"}, "o3": {"cache", "db"},
		"t3": {"cache", "db", "hidden"}, "t4": {"cache", "db", "hidden"},
		"o1": {"db", "hidden"}, "o2": {"db", "hidden"},
		"n":  nil,
		"r1": {"db"}, "r0": {"hidden"},
	}
	for name, sees := range want {
		if diff := cmp.Diff(sees, view.Meshes["default"].Proxies.Get(name).Scope.Services); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	checkShared(t, view)
}
