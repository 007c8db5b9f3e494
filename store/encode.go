package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Encode writes an object as a YAML document that Decode reads back, with its fields at the top level. The order of
// the fields is that of the model, so the same object gives the same bytes.
func Encode(o mesh.Object) ([]byte, error) {
	head := struct {
		Type   mesh.Kind         `json:"type"`
		Mesh   string            `json:"mesh,omitempty"`
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels,omitempty"`
	}{Type: o.Key().Kind, Mesh: o.Key().Mesh, Name: o.Key().Name}
	var spec any
	switch o := o.(type) {
	case *mesh.Mesh:
		head.Labels, spec = o.Labels, o.Spec
	case *mesh.Dataplane:
		head.Labels, spec = o.Labels, o.Spec
	case *mesh.Service:
		head.Labels, spec = o.Labels, o.Spec
	default:
		return nil, fmt.Errorf("encode %T: must be a Mesh, Dataplane or Service", o)
	}
	top, err := node(head)
	if err != nil {
		return nil, err
	}
	fields, err := node(spec)
	if err != nil {
		return nil, err
	}
	top.Content = append(top.Content, fields.Content...)
	plain(top)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", head.Type, head.Name, err)
	}
	return out.Bytes(), nil
}

// node is the JSON form of v, which is YAML in the order of the fields.
func node(v any) (*yaml.Node, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return document.Content[0], nil
}

// oldWords are true and false to readers of YAML 1.1, and stay in quotes.
var oldWords = []string{"y", "n", "yes", "no", "on", "off"}

// plain takes away the look of JSON. The library keeps the quotes that a text needs.
func plain(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(oldWords, strings.ToLower(n.Value)) {
		n.Style = 0
	}
	for _, inner := range n.Content {
		plain(inner)
	}
}
