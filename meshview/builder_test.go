package meshview

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// lists compares the lists of a Change. Other tests compare the views.
var lists = cmp.Options{
	cmpopts.IgnoreFields(Change{}, "Before", "After"), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{}),
	cmp.Transformer("services", Map[Service].toMap), cmp.Transformer("proxies", Map[Proxy].toMap), cmp.Transformer("meshServices", Map[MeshService].toMap),
}

func (m Map[T]) toMap() map[string]*T { return maps.Collect(m.All()) }

type option func(*mesh.Dataplane)

// dataplane returns a Dataplane of mesh default with one inbound on port 80.
func dataplane(name, address, service string, options ...option) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name}}
	d.Spec.Networking.Address = address
	if service != "" {
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: tags(service)}}
	}
	for _, o := range options {
		o(d)
	}
	return d
}

func tags(service string) mesh.Tags { return mesh.Tags{mesh.TagService: service} }

func unready(d *mesh.Dataplane) {
	no := false
	for i := range d.Spec.Networking.Inbound {
		d.Spec.Networking.Inbound[i].Health = &mesh.Health{Ready: &no}
	}
}

func serverFirst(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].ServerFirst = true }

// probed adds a serviceProbe to the first inbound.
func probed(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].ServiceProbe = &mesh.ServiceProbe{} }

func transparent(d *mesh.Dataplane) {
	d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{
		RedirectPortInbound: mesh.PortRedirectIn, RedirectPortOutbound: mesh.PortRedirectOut,
	}
}

// reaches limits a redirected Dataplane to these services.
func reaches(services ...string) option {
	return func(d *mesh.Dataplane) {
		transparent(d)
		d.Spec.Networking.TransparentProxying.ReachableServices = append([]string{}, services...)
	}
}

func workload(name string) option {
	return func(d *mesh.Dataplane) { d.Labels = map[string]string{mesh.LabelWorkload: name} }
}

func inMesh(name string) option { return func(d *mesh.Dataplane) { d.Mesh = name } }

func speaks(p mesh.Protocol) option {
	return func(d *mesh.Dataplane) {
		for i := range d.Spec.Networking.Inbound {
			d.Spec.Networking.Inbound[i].Tags[mesh.TagProtocol] = string(p)
		}
	}
}

func calls(services ...string) option {
	return func(d *mesh.Dataplane) {
		for i, s := range services {
			d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound,
				mesh.Outbound{Address: "127.0.0.1", Port: uint32(10000 + i), Tags: tags(s)})
		}
	}
}

// service returns a Service of mesh default. Addresses with a port are virtual, the others are plain endpoints on port
// 80.
func service(name string, addresses ...string) *mesh.Service {
	s := &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: name}}
	for _, a := range addresses {
		if _, err := netip.ParseAddrPort(a); err == nil {
			s.Spec.Addresses = append(s.Spec.Addresses, a)
		} else {
			s.Spec.Endpoints = append(s.Spec.Endpoints, mesh.ServiceEndpoint{Address: a, Port: 80})
		}
	}
	return s
}

func meshOf(name string, mode mesh.MTLSMode) *mesh.Mesh {
	m := &mesh.Mesh{Name: name}
	if mode != "" {
		m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
	}
	return m
}

// set returns a Builder with these objects.
func set(objects ...mesh.Object) *Builder {
	b := NewBuilder(Options{})
	for _, o := range objects {
		b.Set("files", o)
	}
	return b
}

func mustBuild(t *testing.T, b *Builder) Change {
	t.Helper()
	c, ok := b.Build()
	if !ok {
		t.Fatal("Build() = false, want a Change")
	}
	return c
}

func ExampleBuilder() {
	b := NewBuilder(Options{Sources: []string{"files"}})
	b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
	b.Synced("files")
	c, _ := b.Build()
	fmt.Println(c.After.Meshes["default"].Services.Get("api").Endpoints[0].Address, c.Services)
	// Output: 10.0.0.1:80 [default/api]
}

func TestTrustDomain(t *testing.T) {
	b := NewBuilder(Options{TrustDomain: "example.org"})
	b.Set("files", meshOf("prod", mesh.ModeStrict))
	b.Set("files", dataplane("a", "10.0.0.1", "a", inMesh("prod")))
	_, s := mustBuild(t, b).After.Service("prod/a")
	if want := "spiffe://prod.example.org/workload/a"; s.Identities[0] != want {
		t.Errorf("identities %v, want %s", s.Identities, want)
	}
}

func TestNothingBeforeSynced(t *testing.T) {
	b := NewBuilder(Options{Sources: []string{"files", "kubernetes"}})
	b.Set("files", service("db", "10.0.0.9"))
	b.Synced("files")
	if c, ok := b.Build(); ok {
		t.Fatalf("Build() with a source that is not synced = %v", c)
	}
	b.Synced("kubernetes")
	c := mustBuild(t, b)
	want := Change{Services: []mesh.ID{"default/db"}, Endpoints: []mesh.ID{"default/db"}}
	if diff := cmp.Diff(want, c, lists); diff != "" {
		t.Error(diff)
	}
	if c.Before != nil || c.After.Generation != 1 {
		t.Errorf("first Change: Before %v, Generation %d", c.Before, c.After.Generation)
	}
	if c, ok := b.Build(); ok {
		t.Errorf("Build() without input = %v", c)
	}
}

func TestExplicitMeshes(t *testing.T) {
	b := NewBuilder(Options{ExplicitMeshes: true})
	b.Set("files", dataplane("api-1", "10.0.0.1", "api"))
	if m := mustBuild(t, b).After.Mesh(mesh.DefaultMesh); m != nil {
		t.Errorf("without a Mesh there is one: %+v", m.Spec)
	}
	b.Set("files", meshOf(mesh.DefaultMesh, mesh.ModePermissive))
	m := mustBuild(t, b).After.Mesh(mesh.DefaultMesh)
	if m == nil || m.Spec.Mode() != mesh.ModePermissive || m.Proxies.Get("api-1") == nil {
		t.Errorf("with its Mesh, the mesh is %+v", m)
	}
	b.Delete("files", mesh.Key{Kind: mesh.KindMesh, Name: mesh.DefaultMesh})
	if m := mustBuild(t, b).After.Mesh(mesh.DefaultMesh); m != nil {
		t.Error("the mesh outlives its Mesh")
	}
}
