package chart_test

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/test/harness"
)

// value is a key of values.yaml.
type value struct {
	leaf, commented bool
}

// valuesOf returns the keys of a mapping, by path. A value in braces or brackets counts as one value.
func valuesOf(n *yaml.Node, at string, all map[string]value) {
	for i := 0; i < len(n.Content); i += 2 {
		key, of := n.Content[i], n.Content[i+1]
		branch := of.Kind == yaml.MappingNode && of.Style&yaml.FlowStyle == 0
		all[path.Join(at, key.Value)] = value{leaf: !branch, commented: key.HeadComment != "" || key.LineComment != "" || of.LineComment != ""}
		if branch {
			valuesOf(of, path.Join(at, key.Value), all)
		}
	}
}

// readValues returns the keys of values.yaml.
func readValues(t *testing.T, directory string) map[string]value {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(directory, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	all := map[string]value{}
	valuesOf(document.Content[0], "", all)
	return all
}

// schema is the part of the schema that the test uses.
type schema struct {
	Ref        string             `json:"$ref"`
	Properties map[string]*schema `json:"properties"`
	// Closed is false if the schema accepts only the keys of Properties.
	Closed      any                `json:"additionalProperties"`
	Definitions map[string]*schema `json:"definitions"`
}

// of returns the schema of a key, or nil without one, and whether the schema accepts all keys
// there.
func (s *schema) of(key string, root *schema) (of *schema, open bool) {
	of = s.Properties[key]
	if of != nil && of.Ref != "" {
		of = root.Definitions[path.Base(of.Ref)]
	}
	return of, s.Closed != false
}

// keys returns all keys of the schema, by path.
func (s *schema) keys(at string, root *schema, all *[]string) {
	for key := range s.Properties {
		of, _ := s.of(key, root)
		*all = append(*all, path.Join(at, key))
		of.keys(path.Join(at, key), root, all)
	}
}

// TestValues compares values.yaml with its comments and with the schema, both ways.
func TestValues(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(root, "deploy", "chart")
	values := readValues(t, directory)
	if len(values) < 60 {
		t.Errorf("only %d values", len(values))
	}
	text, err := os.ReadFile(filepath.Join(directory, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	for at, v := range values {
		if v.leaf && !v.commented && !withoutComment(at) {
			t.Errorf("values.yaml: %s has no comment", at)
		}
		if !s.takes(at) {
			t.Errorf("values.yaml: %s is not in the schema", at)
		}
	}
	var keys, missing []string
	s.keys("", &s, &keys)
	for _, at := range keys {
		if _, there := values[at]; !there && !inFlow(values, at) {
			missing = append(missing, at)
		}
	}
	slices.Sort(missing)
	// Helm owns the first key. The chart sets the second, which users may also set.
	if d := cmp.Diff([]string{"config/store", "global"}, missing); d != "" {
		t.Errorf("in the schema, and not in values.yaml (-want +got):\n%s", d)
	}
}

// takes reports whether the schema has a key, or accepts any key there.
func (s *schema) takes(at string) bool {
	dir, key := path.Split(at)
	in := s
	for _, part := range slices.DeleteFunc(splitPath(dir), func(p string) bool { return p == "" }) {
		of, open := in.of(part, s)
		if of == nil {
			return open
		}
		in = of
	}
	of, open := in.of(key, s)
	return of != nil || open
}

func splitPath(at string) []string {
	var parts []string
	for at = path.Clean("/" + at); at != "/"; at = path.Dir(at) {
		parts = append(parts, path.Base(at))
	}
	slices.Reverse(parts)
	return parts
}

// inFlow reports whether a key belongs to a value in braces or brackets.
func inFlow(values map[string]value, at string) bool {
	for at = path.Dir(at); at != "."; at = path.Dir(at) {
		if v, there := values[at]; there {
			return v.leaf
		}
	}
	return false
}

// withoutComment reports whether a value needs no comment: an entry of a mapping that has one comment.
func withoutComment(at string) bool {
	return path.Dir(at) == "watchdog/gardener/config" || path.Dir(at) == "watchdog/dependants"
}
