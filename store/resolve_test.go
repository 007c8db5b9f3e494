package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	meshDefault = "type: Mesh\nname: default\n"
	meshProd    = "type: Mesh\nname: prod\n"
)

// texts are files to write. An empty text removes a file.
type texts map[string][]string

// resolved is a directory in memory, and the objects in use.
type resolved struct {
	*directory
	held claims
}

func newResolved() *resolved { return &resolved{directory: newDirectory("", 0), held: claims{}} }

func (r *resolved) write(changed texts) {
	for name, documents := range changed {
		if documents == nil {
			delete(r.files, name)
			continue
		}
		if r.files[name] == nil {
			r.files[name] = &file{name: name}
		}
		r.files[name].pending = nil
		r.files[name].decode([]byte(strings.Join(documents, "---\n")))
	}
}

// resolve writes files, and returns the objects that are then in use, each with its place, and the problems.
func (r *resolved) resolve(changed texts) (held, problems []string) {
	r.write(changed)
	r.held = r.directory.resolve(r.held)
	for _, k := range r.held.keys() {
		held = append(held, strings.Join(strings.Fields(fmt.Sprint(k.Kind, " ", k.Mesh, " ", k.Name, ": ", r.held[k].Place)), " "))
	}
	for _, p := range r.problems() {
		problems = append(problems, p.Error())
	}
	return held, problems
}

func TestResolveRefusedContentHoldsUpNoOther(t *testing.T) {
	x, y, prodX, prodY := service("x"), service("y"), serviceOf("prod", "x"), serviceOf("prod", "y")
	tests := map[string]struct {
		steps          []texts
		held, problems []string
	}{
		"refused for the mesh of another document": {
			steps: []texts{
				{"a.yaml": {""}, "b.yaml": {prodX, x}},
				{"a.yaml": {y, prodX}, "b.yaml": {prodX}},
				{"c.yaml": {meshProd}},
			},
			held:     []string{"Mesh prod: c.yaml, document 1, line 1", "Service prod x: b.yaml, document 1, line 1"},
			problems: []string{`a.yaml, document 1, line 1: mesh: "default": must be the name of a Mesh: prod`, `a.yaml, document 2, line 6: name: "x": must be unique: the Service of mesh "prod" with this name is in b.yaml, document 1, line 1 too`},
		},
		"refused for an object in use": {
			steps: []texts{
				{"a.yaml": {""}, "b.yaml": {""}, "c.yaml": {y}},
				{"a.yaml": {x, y}, "b.yaml": {x}},
			},
			held:     []string{"Service default x: b.yaml, document 1, line 1", "Service default y: c.yaml, document 1, line 1"},
			problems: []string{`a.yaml, document 1, line 2: name: "x": must be unique: the Service of mesh "default" with this name is in b.yaml`, `a.yaml, document 2, line 5: name: "y": must be unique`},
		},
		"refused because another one is": {
			// a and b exchange x and y, but x stays a's as the first by name. So y stays b's, and a gets neither.
			steps: []texts{
				{"a.yaml": {""}, "b.yaml": {y}},
				{"a.yaml": {x, y}, "b.yaml": {x}},
			},
			held:     []string{"Service default x: b.yaml, document 1, line 1"},
			problems: []string{`a.yaml, document 1, line 2: name: "x": must be unique: the Service of mesh "default" with this name is in b.yaml`},
		},
		"refused, and would take a Mesh away": {
			steps: []texts{
				{"a.yaml": {meshProd, meshDefault}, "b.yaml": {""}, "c.yaml": {x}},
				{"a.yaml": {meshDefault, x}, "b.yaml": {prodY}},
			},
			held: []string{"Mesh default: a.yaml, document 2, line 4", "Mesh prod: a.yaml, document 1, line 1",
				"Service default x: c.yaml, document 1, line 1", "Service prod y: b.yaml, document 1, line 1"},
			problems: []string{`a.yaml, document 2, line 5: name: "x": must be unique`},
		},
		"refused, and brings the first Mesh": {
			steps: []texts{
				{"a.yaml": {""}, "b.yaml": {""}, "c.yaml": {y}},
				{"a.yaml": {prodX, y}, "b.yaml": {meshProd, prodX}},
			},
			held: []string{"Mesh default:", "Mesh prod: b.yaml, document 1, line 1",
				"Service default y: c.yaml, document 1, line 1", "Service prod x: b.yaml, document 2, line 4"},
			problems: []string{
				`a.yaml, document 1, line 3: name: "x": must be unique: the Service of mesh "prod" with this name is in b.yaml`,
				`a.yaml, document 2, line 5: mesh: "default": must be the name of a Mesh: prod`,
				`a.yaml, document 2, line 6: name: "y": must be unique: the Service of mesh "default" with this name is in c.yaml`,
				`c.yaml, document 1, line 1: mesh: "default": must be the name of a Mesh: prod`,
			},
		},
		"refused for an object that is another's from now on": {
			steps: []texts{
				{"a.yaml": {""}, "b.yaml": {x}, "c.yaml": {x, y}, "d.yaml": {prodX}, "e.yaml": {service("e")}, "m.yaml": {meshDefault, meshProd}},
				{"a.yaml": {x, service("e")}, "b.yaml": nil, "c.yaml": {x, prodX}, "d.yaml": {y}},
			},
			held: []string{"Mesh default: m.yaml, document 1, line 1", "Mesh prod: m.yaml, document 2, line 4",
				"Service default e: e.yaml, document 1, line 1", "Service default x: c.yaml, document 1, line 1",
				"Service default y: d.yaml, document 1, line 1", "Service prod x: c.yaml, document 2, line 4"},
			problems: []string{
				`a.yaml, document 1, line 2: name: "x": must be unique: the Service of mesh "default" with this name is in c.yaml`,
				`a.yaml, document 2, line 5: name: "e": must be unique: the Service of mesh "default" with this name is in e.yaml`,
			},
		},
		"two that change places are used together": {
			steps: []texts{
				{"a.yaml": {x}, "b.yaml": {y}},
				{"a.yaml": {y}, "b.yaml": {x}},
			},
			held: []string{"Service default x: b.yaml, document 1, line 1", "Service default y: a.yaml, document 1, line 1"},
		},
		"what is refused is told of the text as it is now": {
			steps: []texts{
				{"a.yaml": {meshProd}, "b.yaml": {prodX}},
				{"a.yaml": nil},
				{"b.yaml": {"# a comment\n" + prodX}},
			},
			held:     []string{"Mesh prod: a.yaml, document 1, line 1", "Service prod x: b.yaml, document 1, line 1"},
			problems: []string{`b.yaml, document 1, line 3: mesh: "prod": must be the name of a Mesh: default`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newResolved()
			var held, problems []string
			for _, step := range tc.steps {
				held, problems = r.resolve(step)
			}
			if diff := cmp.Diff(tc.held, held); diff != "" {
				t.Errorf("held (-want +got):\n%s", diff)
			}
			if !slices.EqualFunc(problems, tc.problems, strings.HasPrefix) {
				t.Errorf("problems = %q, want %q", problems, tc.problems)
			}
		})
	}
}
