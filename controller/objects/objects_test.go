package objects

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// calls records the calls of a Builder.
type calls []string

func (c *calls) Set(_ string, o mesh.Object) { *c = append(*c, "set "+text(o.Key())) }
func (c *calls) Delete(_ string, k mesh.Key) { *c = append(*c, "delete "+text(k)) }
func (c *calls) Synced(string)               { *c = append(*c, "synced") }
func (c *calls) take() (all []string)        { all, *c = *c, nil; return all }
func (c *calls) want(t *testing.T, all ...string) {
	t.Helper()
	if d := cmp.Diff(all, c.take()); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}

func text(k mesh.Key) string {
	if k.Mesh == "" {
		return fmt.Sprintf("%s %s", k.Kind, k.Name)
	}
	return fmt.Sprintf("%s %s/%s", k.Kind, k.Mesh, k.Name)
}

// newObjects returns Objects that the test feeds in place of watches; *meshOf is the mesh of namespace shop.
func newObjects(t *testing.T, meshOf *string) (*Objects, *calls) {
	t.Helper()
	return newRecordedObjects(t, meshOf, func() map[string]*mesh.Mesh { return nil })
}

// newRecordedObjects is newObjects with recorded meshes.
func newRecordedObjects(t *testing.T, meshOf *string, recorded func() map[string]*mesh.Mesh) (*Objects, *calls) {
	t.Helper()
	var c calls
	s, err := New(Options{Config: &rest.Config{}, Builder: &c, Name: "objects", MeshOf: func(string) string { return *meshOf }, Recorded: recorded})
	if err != nil {
		t.Fatal(err)
	}
	return s, &c
}

func aMesh(name, backend string) *v1alpha1.Mesh {
	return &v1alpha1.Mesh{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{
		EnabledBackend: backend, Backends: []mesh.Backend{{Name: "ca-1", Type: mesh.BackendBuiltin, Mode: mesh.ModeStrict}},
	}}}
}

func aDataplane(service string, labels map[string]string) *v1alpha1.Dataplane {
	return &v1alpha1.Dataplane{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "vm", Labels: labels}, Spec: mesh.DataplaneSpec{
		Networking: mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{Port: 80, ServicePort: 8080, Tags: map[string]string{mesh.TagService: service}}}},
	}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An invalid object keeps its last valid content until it is deleted. An object that moves to another mesh leaves the
// first.
func TestWhatTheBuilderGets(t *testing.T) {
	meshOf := "default"
	s, c := newObjects(t, &meshOf)
	must(t, s.meshes.Add(aMesh("default", "ca-1")))
	must(t, s.dataplanes.Add(aDataplane("web", nil)))
	c.want(t, "set Mesh default", "set Dataplane default/vm.shop")

	must(t, s.meshes.Add(aMesh("default", "ca-2")))
	must(t, s.dataplanes.Add(aDataplane("web_bank_svc_80", nil)))
	c.want(t)
	var problems []string
	for _, p := range s.Problems() {
		problems = append(problems, p.Resource+" "+p.Namespace+"/"+p.Name)
	}
	if d := cmp.Diff([]string{"dataplanes shop/vm", "meshes /default"}, problems); d != "" {
		t.Error(d)
	}

	must(t, s.dataplanes.Add(aDataplane("web", nil)))
	meshOf = "prod"
	s.MeshChanged("bank")
	c.want(t, "set Dataplane default/vm.shop")
	s.MeshChanged("shop")
	c.want(t, "set Dataplane prod/vm.shop", "delete Dataplane default/vm.shop")
	must(t, s.dataplanes.Delete(aDataplane("web", nil)))
	must(t, s.meshes.Delete(aMesh("default", "ca-2")))
	c.want(t, "delete Dataplane prod/vm.shop", "delete Mesh default")
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems of deleted objects: %v", p)
	}
	must(t, s.meshes.Replace(nil, ""))
	c.want(t)
	must(t, s.dataplanes.Replace(nil, ""))
	c.want(t, "synced")
}

func TestCondition(t *testing.T) {
	meshOf := "default"
	s, _ := newObjects(t, &meshOf)
	must(t, s.meshes.Add(aMesh("default", "ca-1")))
	long := aMesh("default", "ca-1")
	for range 1000 {
		long.Spec.MTLS.Backends = append(long.Spec.MTLS.Backends, mesh.Backend{Name: strings.Repeat("ä", 50)})
	}
	key := watch.Key{Namespace: "shop", Name: "vm"}
	deprecated := dataplaneOf(aDataplane("web", nil))
	deprecated.Spec.Probes = &mesh.Probes{Port: 9000}
	tests := map[string]struct {
		resource string
		object   mesh.Object
		reason   string
		text     string
	}{
		"a Mesh":                 {resourceMeshes, &mesh.Mesh{Name: "default", Spec: aMesh("", "ca-1").Spec}, "Accepted", ""},
		"a Mesh without backend": {resourceMeshes, &mesh.Mesh{Name: "default", Spec: aMesh("", "ca-2").Spec}, "Invalid", "enabledBackend"},
		"a Mesh without mTLS":    {resourceMeshes, &mesh.Mesh{Name: "default"}, "Accepted", ""},
		"a Mesh with mTLS off":   {resourceMeshes, &mesh.Mesh{Name: "default", Spec: aMesh("", "").Spec}, "Accepted", "mtls.enabledBackend: is missing: mTLS is off"},
		"a Dataplane of Kuma's":  {resourceDataplanes, deprecated, "Accepted", "probes: is deprecated"},
		"too much is wrong":      {resourceMeshes, &mesh.Mesh{Name: "default", Spec: long.Spec}, "Invalid", "backends"},
		"a Dataplane":            {resourceDataplanes, dataplaneOf(aDataplane("web", nil)), "Accepted", ""},
		"of a mesh that is not":  {resourceDataplanes, dataplaneOf(aDataplane("web", map[string]string{mesh.LabelMesh: "prod"})), "UnknownMesh", `mesh "prod" does not exist`},
		"another's service":      {resourceDataplanes, dataplaneOf(aDataplane("web_bank_svc_80", nil)), "Invalid", "another namespace"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := s.conditionOf(reference{tc.resource, key}, &record{object: tc.object, generation: 3})
			status := map[bool]metav1.ConditionStatus{true: "True", false: "False"}[tc.reason == "Accepted"]
			if got.Type != "Accepted" || got.Status != status || got.Reason != tc.reason || got.ObservedGeneration != 3 ||
				!strings.Contains(got.Message, tc.text) || (got.Message == "") != (tc.text == "") {
				t.Errorf("condition %.200v", got)
			}
			if len(got.Message) > maxMessage {
				t.Errorf("the message has %d bytes", len(got.Message))
			}
		})
	}
}

// A recorded mesh continues to exist without its Mesh. That is a problem until a Mesh exists again.
func TestLostMesh(t *testing.T) {
	meshOf := "default"
	recorded := map[string]*mesh.Mesh{}
	s, _ := newRecordedObjects(t, &meshOf, func() map[string]*mesh.Mesh { return recorded })
	must(t, s.meshes.Add(aMesh("default", "ca-1")))
	recorded["default"] = &mesh.Mesh{Name: "default", Spec: aMesh("default", "ca-1").Spec, Recorded: true}
	s.kindSynced()
	s.kindSynced()
	has := func(when string, problems int, meshes ...string) {
		t.Helper()
		if got := s.Problems(); len(got) != problems || problems == 1 && (got[0].Name != "default" || !strings.Contains(got[0].Text, "recorded mode STRICT")) {
			t.Errorf("%s the problems are %v, want %d", when, got, problems)
		}
		if got, known := s.Meshes(); !known || cmp.Diff(meshes, got) != "" {
			t.Errorf("%s the meshes are %q, want %q", when, got, meshes)
		}
	}
	has("at first", 0, "default")
	must(t, s.meshes.Delete(aMesh("default", "ca-1")))
	has("without its Mesh", 1, "default")
	if d := aDataplane("web", nil); s.conditionOf(reference{resourceDataplanes, watch.Key{Namespace: "shop", Name: "vm"}}, &record{object: dataplaneOf(d)}).Status != metav1.ConditionTrue {
		t.Error("its Dataplanes are not accepted")
	}
	delete(recorded, "default")
	has("once it has ended", 0)
}
