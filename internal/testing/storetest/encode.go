// Package storetest writes objects as files of a store, for tests.
package storetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Encode writes an object as a YAML document that store.Decode reads back, with the fields of its spec at the top
// level. The fields are in the order of the model, so the same object always gives the same bytes.
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
	case *mesh.MeshService:
		head.Labels, spec = o.Labels, o.Spec
	default:
		return nil, fmt.Errorf("encode %T: must be a Mesh, Dataplane, Service or MeshService", o)
	}
	top, err := toNode(head)
	if err != nil {
		return nil, err
	}
	fields, err := toNode(spec)
	if err != nil {
		return nil, err
	}
	top.Content = append(top.Content, fields.Content...)
	unquote(top)
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(top); err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", head.Type, head.Name, err)
	}
	return out.Bytes(), nil
}

// toNode returns v as YAML in the order of its fields. It goes through JSON, which is also YAML.
func toNode(v any) (*yaml.Node, error) {
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

// yaml11Booleans are booleans for readers of YAML 1.1, so they stay quoted.
var yaml11Booleans = []string{"y", "n", "yes", "no", "on", "off"}

// unquote turns JSON style into block style. The library keeps the quotes that a string needs.
func unquote(n *yaml.Node) {
	if n.Kind != yaml.ScalarNode || !slices.Contains(yaml11Booleans, strings.ToLower(n.Value)) {
		n.Style = 0
	}
	for _, inner := range n.Content {
		unquote(inner)
	}
}
