// Package printer writes sondectl's output: tables, JSON and YAML, safe for a terminal.
package printer

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/internal/settings"
)

// Format is the value of -o.
type Format string

// Values of -o.
const (
	Table Format = "table"
	Wide  Format = "wide"
	Name  Format = "name"
	Text  Format = "text"
	YAML  Format = "yaml"
	JSON  Format = "json"
)

// AddFormat adds the flag -o to cmd. The first format is the default.
func AddFormat(cmd *cobra.Command, among ...Format) *settings.Choice[Format] {
	f := &settings.Choice[Format]{Value: among[0], Among: among}
	f.Add(cmd, "output", "o", "output format")
	return f
}

// Write writes v as JSON or YAML. In other formats, text writes it.
func Write(out *Output, f Format, v any, text func()) error {
	switch f {
	case JSON:
		return WriteJSON(out, v)
	case YAML:
		return WriteYAML(out, v)
	default:
		text()
		return nil
	}
}

// WriteJSON writes v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// Message is a message of the API as a document with empty and false fields.
type Message struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (m Message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m.Message)
}

// WriteYAML writes the JSON of v as YAML, in the same order, but scalar fields first: otherwise an object's name could
// follow pages of content.
func WriteYAML(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	node, err := yamlNode(decoder)
	if err != nil {
		return err
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(node); err != nil {
		return err
	}
	return encoder.Close()
}

// yamlNode reads one JSON value as a YAML node. Unlike a YAML parser, it accepts control characters, which texts from
// proxies may contain.
func yamlNode(decoder *json.Decoder) (*yaml.Node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Delim:
		return yamlCollection(decoder, token)
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(token.String(), ".eE") {
			tag = "!!float"
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: token.String()}, nil
	default:
		node := &yaml.Node{}
		return node, node.Encode(token)
	}
}

// yamlCollection reads the rest of an object or a list after its first delimiter.
func yamlCollection(decoder *json.Decoder, begin json.Delim) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.SequenceNode}
	if begin == '{' {
		node.Kind = yaml.MappingNode
	}
	for decoder.More() {
		child, err := yamlNode(decoder)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle
	}
	if node.Kind == yaml.MappingNode {
		scalarsFirst(node)
	}
	_, err := decoder.Token()
	return node, err
}

func scalarsFirst(mapping *yaml.Node) {
	var short, long []*yaml.Node
	for field := range slices.Chunk(mapping.Content, 2) {
		if field[1].Kind == yaml.ScalarNode {
			short = append(short, field...)
		} else {
			long = append(long, field...)
		}
	}
	mapping.Content = slices.Concat(short, long)
}
