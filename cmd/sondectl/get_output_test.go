package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// manyEndpoints is a control plane with one service that exceeds all limits of a table.
type manyEndpoints struct{ adminv1.AdminServiceClient }

func (manyEndpoints) ListServices(context.Context, *adminv1.ListServicesRequest, ...grpc.CallOption) (*adminv1.ListServicesResponse, error) {
	s := &adminv1.Service{Mesh: "default", Name: "web", Protocol: "http"}
	for i := range 7 {
		s.Addresses = append(s.Addresses, fmt.Sprintf("240.0.0.%d:80", i))
		s.Identities = append(s.Identities, fmt.Sprintf("spiffe://default/%d", i))
		s.Endpoints = append(s.Endpoints, &adminv1.Endpoint{Address: fmt.Sprintf("10.0.0.%d:80", i), Health: adminv1.Endpoint_NOT_READY, Reason: "why"})
	}
	return &adminv1.ListServicesResponse{Services: []*adminv1.Service{s}}, nil
}

func TestWideCutsNothing(t *testing.T) {
	l, err := services.list(t.Context(), manyEndpoints{}, &adminv1.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for f, cut := range map[printer.Format]bool{printer.Table: true, printer.Wide: false} {
		t.Run(string(f), func(t *testing.T) {
			var out printer.Output
			if err := (&getOutput{format: f}).write(&out, services, l, false); err != nil {
				t.Fatal(err)
			}
			for _, last := range []string{"240.0.0.6:80", "spiffe://default/6", "not ready: 10.0.0.6:80: why"} {
				if strings.Contains(out.String(), last) == cut {
					t.Errorf("%q is in the table: %v, want %v:\n%s", last, !cut, !cut, &out)
				}
			}
		})
	}
}

// TestServiceKeepsItsPolicies checks that the output Service has the same effect as the one in the store.
func TestServiceKeepsItsPolicies(t *testing.T) {
	o, err := serviceObject(&adminv1.Service{
		Mesh: "default", Name: "web", Protocol: "http", Affinity: true, Local: true,
		Endpoints: []*adminv1.Endpoint{{Address: "10.0.0.1:80", Health: adminv1.Endpoint_READY, Declared: true, Node: "node-1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &mesh.ServiceSpec{
		Protocol: mesh.ProtocolHTTP, SessionAffinity: mesh.AffinityClientIP, InternalTrafficPolicy: mesh.TrafficLocal,
		Endpoints: []mesh.ServiceEndpoint{{Address: "10.0.0.1", Port: 80, NodeName: "node-1"}},
	}
	if diff := cmp.Diff(want, o.Spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestGetOutput(t *testing.T) {
	l := &listing{header: []string{"NAME", "N"}, documents: []any{map[string]any{"name": "a", "n": 1 << 60}, map[string]any{"name": "b", "labels": map[string]string{"x.y/z": "w"}}}}
	for _, name := range []string{"a", "b"} {
		l.rows = append(l.rows, printer.Row{Cells: []string{name, "1"}})
	}
	tests := map[string]struct {
		output    string
		one       bool
		noHeaders bool
		want      string
	}{
		"table":               {output: "table", want: "NAME   N\na      1\nb      1\n"},
		"no headers":          {output: "table", noHeaders: true, want: "a   1\nb   1\n"},
		"names":               {output: "name", want: "mesh/a\nmesh/b\n"},
		"names without any":   {output: "name", noHeaders: true, want: "mesh/a\nmesh/b\n"},
		"a list":              {output: "jsonpath={.items[*].name}", want: "a b"},
		"a large number":      {output: "jsonpath={.items[0].n}", want: "1152921504606846976"},
		"each of a name":      {output: "jsonpath={.name}", one: true, want: "a\nb"},
		"a key with dots":     {output: `jsonpath={.labels.x\.y/z}`, one: true, want: "\nw"},
		"text":                {output: `jsonpath={range .items[*]}<{.name}>{"\n"}{end}`, want: "<a>\n<b>\n"},
		"what is not there":   {output: "jsonpath={.items[*].labels.none}", want: ""},
		"an object":           {output: "jsonpath={.items[1].labels}", want: `{"x.y/z":"w"}`},
		"JSON, always a list": {output: "json", one: true, want: "[\n  {\n    \"n\": 1152921504606846976,\n    \"name\": \"a\"\n  },\n  {\n    \"labels\": {\n      \"x.y/z\": \"w\"\n    },\n    \"name\": \"b\"\n  }\n]\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := getOutput{noHeaders: tc.noHeaders}
			if err := o.Set(tc.output); err != nil {
				t.Fatal(err)
			}
			if err := o.check(tc.one); err != nil {
				t.Fatal(err)
			}
			var out printer.Output
			if err := o.write(&out, meshes, l, tc.one); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// FuzzTemplate shows that no template crashes the program.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{"{.items[*].name}", "{range .items[*]}{@}{end}", "{.items[?(@.n>1)].name}", "{.items[-1:]['name','n']}", "{end}", "{range}", "{..}"} {
		f.Add(seed)
	}
	l := &listing{documents: []any{map[string]any{"name": "a", "n": 1, "l": []int{1}}}}
	f.Fuzz(func(_ *testing.T, template string) {
		var o getOutput
		if o.Set(jsonPathPrefix+template) == nil {
			_ = o.write(&printer.Output{}, meshes, l, false)
		}
	})
}

// TestNamesAreThoseOfKubectl compares the names of kinds that also exist in Kubernetes with kubectl's.
func TestNamesAreThoseOfKubectl(t *testing.T) {
	files := map[string]collection{"sonde.dev_meshes.yaml": meshes, "sonde.dev_dataplanes.yaml": dataplanes}
	for file, of := range files {
		t.Run(file, func(t *testing.T) {
			text, err := crds.Files.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var definition struct {
				Spec struct {
					Names struct {
						Singular, Plural string
						ShortNames       []string `yaml:"shortNames"`
					}
				}
			}
			if err := yaml.Unmarshal(text, &definition); err != nil {
				t.Fatal(err)
			}
			names := definition.Spec.Names
			words := of.singular.Words()
			if names.Singular != string(of.singular) || names.Plural != words[0] || !slices.Equal(names.ShortNames, words[1:]) {
				t.Errorf("kubectl: %+v, sondectl: %s, %v", names, of.singular, words)
			}
		})
	}
}
