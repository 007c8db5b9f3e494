package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// client returns a Dataplane with an outbound to each of the services.
func client(name string, services ...string) string {
	var text strings.Builder
	text.WriteString("type: Dataplane\nname: " + name + "\nlabels: {kuma.io/workload: web}\nnetworking:\n  address: 10.0.0.1\n  outbound:\n")
	for i, s := range services {
		fmt.Fprintf(&text, "  - port: %d\n    tags: {kuma.io/service: %s}\n", 10001+i, s)
	}
	return text.String()
}

func TestRead(t *testing.T) {
	tests := map[string]struct {
		files    map[string]string
		objects  []string
		problems []string
	}{
		"directory": {
			files: map[string]string{
				"b.yaml": service("b"), "a.yml": service("z") + "---\n" + service("a"), "c.json": `{"type":"Mesh","name":"default"}`,
				"d.txt": broken, ".e.yaml": broken,
			},
			objects: []string{"z", "a", "b", "default"},
		},
		"duplicate in two files": {
			files:   map[string]string{"a.yaml": service("x"), "b.yaml": service("y") + "---\n" + service("x")},
			objects: []string{"x", "y"},
			problems: []string{`b.yaml, document 2, line 5: name: "x": must be unique: ` +
				`the Service of mesh "default" with this name is in a.yaml, document 1, line 1 too`},
		},
		"same name, other kind and mesh": {
			files: map[string]string{"a.yaml": service("x") + "---\n" + serviceOf("x", "x") +
				"---\ntype: Mesh\nname: x\n---\ntype: Mesh\nname: default\n"},
			objects: []string{"x", "x", "x", "default"},
		},
		"unknown mesh": {
			files:   map[string]string{"a.yaml": "type: Mesh\nname: prod\n", "b.yaml": service("x"), "c.yaml": serviceOf("prod", "y")},
			objects: []string{"prod", "y"},
			problems: []string{
				`b.yaml, document 1, line 1: mesh: "default": must be the name of a Mesh: prod`,
			},
		},
		"unknown mesh where there is no Mesh": {
			files:    map[string]string{"a.yaml": serviceOf("prod", "x")},
			problems: []string{`a.yaml, document 1, line 2: mesh: "prod": must be the name of a Mesh: default`},
		},
		"services that do not exist": {
			files:   map[string]string{"a.yaml": service("x"), "b.yaml": client("web-1", "x", "wev") + "---\n" + client("web-2", "wev", "db")},
			objects: []string{"x", "web-1", "web-2"},
			problems: []string{
				`b.yaml, document 1, line 1: mesh "default": an outbound of web-1, web-2 names service "wev", which does not exist: calls of it fail`,
				`b.yaml, document 2, line 12: mesh "default": an outbound of web-2 names service "db", which does not exist: calls of it fail`,
			},
		},
		"services of which the file may be broken": {
			files:    map[string]string{"a.yaml": client("web-1", "x"), "b.yaml": "type: Mesh\nname: A\n"},
			objects:  []string{"web-1"},
			problems: []string{`b.yaml, document 1, line 2: name: "A": must be a DNS label: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends`},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			for file, text := range tc.files {
				if err := os.WriteFile(filepath.Join(path, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			documents, problems, err := Read(path, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			var objects, texts []string
			for _, d := range documents {
				objects = append(objects, d.Object.Key().Name)
			}
			for _, p := range problems {
				texts = append(texts, strings.ReplaceAll(p.Error(), path+string(filepath.Separator), ""))
			}
			if diff := cmp.Diff(tc.objects, objects); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.problems, texts); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadStandardInputAndFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no-extension")
	if err := os.WriteFile(file, []byte(service("a")), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, stdin := range map[string]string{"-": service("a"), file: ""} {
		documents, problems, err := Read(path, strings.NewReader(stdin), "")
		if err != nil || len(problems) != 0 || len(documents) != 1 || documents[0].Place.File != path {
			t.Errorf("Read(%s) = %v, %v, %v", path, documents, problems, err)
		}
	}
}

// endless is a reader without an end, which must not be read completely.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestReadLimitsStandardInput(t *testing.T) {
	in := &endless{}
	_, problems, err := Read("-", in, "")
	if err != nil || len(problems) != 1 || problems[0].Error() != "-: a file may have at most 8 MiB" || in.read > 4*maxFile {
		t.Errorf("Read() = %v, %v after %d bytes", problems, err, in.read)
	}
}

func TestReadErrors(t *testing.T) {
	if _, _, err := Read(filepath.Join(t.TempDir(), "none"), nil, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() = %v, want fs.ErrNotExist", err)
	}
}
