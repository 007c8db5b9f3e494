package lists

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/explain"
)

func TestUnknownServices(t *testing.T) {
	dataplane := func(meshName, name string, services ...string) *mesh.Dataplane {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshName, Name: name}}
		d.Spec.Networking.Address = "10.0.0.1"
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}}}
		for i, s := range services {
			d.Spec.Networking.Outbound = append(d.Spec.Networking.Outbound, mesh.Outbound{Port: uint32(10001 + i), Tags: mesh.Tags{mesh.TagService: s}})
		}
		return d
	}
	var many []string
	for i := range 25 {
		many = append(many, fmt.Sprintf("s%02d", i))
	}
	for name, tc := range map[string]struct {
		objects []mesh.Object
		want    []string
	}{
		"all are there":     {[]mesh.Object{dataplane("default", "web-1", "web")}, nil},
		"one is not":        {[]mesh.Object{dataplane("default", "web-1", "web", "wev")}, []string{`mesh "default": an outbound of web-1 names service "wev", which does not exist: calls of it fail: did you mean "web"?`}},
		"not in that mesh":  {[]mesh.Object{&mesh.Mesh{Name: "a"}, &mesh.Mesh{Name: "b"}, &mesh.Service{Meta: mesh.Meta{Mesh: "a", Name: "x"}}, dataplane("b", "web-1", "x")}, []string{`mesh "b": an outbound of web-1 names service "x", which does not exist: calls of it fail`}},
		"without endpoints": {[]mesh.Object{&mesh.Service{Meta: mesh.Meta{Mesh: "default", Name: "x"}}, dataplane("default", "web-1", "x")}, nil},
		"a MeshService that is not there": {[]mesh.Object{reaching(dataplane("default", "web-1"), mesh.BackendRef{Name: "fron", Port: 80}), meshServiceOf("front", "", 80)},
			[]string{`mesh "default": an outbound of web-1 names service "fron_msvc_80", which does not exist: calls of it fail: there is no MeshService "fron": did you mean "front"?`}},
		"of many": {[]mesh.Object{dataplane("default", "a", "x", "x"), dataplane("default", "b", "x"), dataplane("default", "c", "x"), dataplane("default", "d", "x"), dataplane("default", "e", "x")},
			[]string{`mesh "default": an outbound of a, b, c and 2 more names service "x", which does not exist: calls of it fail`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range unknownServices(viewOf(tc.objects...)) {
				if !p.GetWarning() {
					t.Errorf("%q is no warning", p.GetText())
				}
				got = append(got, p.GetText())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
	if got := unknownServices(viewOf(dataplane("default", "a", many...))); len(got) != explain.MaxUnknown+1 || got[explain.MaxUnknown].GetText() != "outbounds name 5 more services that do not exist" {
		t.Errorf("of 25: %d, the last %v", len(got), got[len(got)-1])
	}
	if got := unknownServices(nil); got != nil {
		t.Errorf("without a view: %v", got)
	}
}

func viewOf(objects ...mesh.Object) *meshview.View {
	b := meshview.NewBuilder(meshview.Options{})
	for _, o := range objects {
		o.SetDefaults()
		b.Set("test", o)
	}
	change, _ := b.Build()
	return change.After
}
