// Package printer writes what sondectl shows: tables, JSON and YAML, safe for a terminal.
package printer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

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
	f.Add(cmd, "output", "o", "how to write it")
	return f
}

// Write writes v as JSON or YAML, or in any other format the text that text writes.
func Write(out *bytes.Buffer, f Format, v any, text func()) error {
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

// Message is a message of the API as a document, which includes empty and false fields.
type Message struct{ proto.Message }

// MarshalJSON implements json.Marshaler.
func (m Message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m.Message)
}

// WriteYAML writes v as YAML, by way of its JSON and in the order of it, except that scalar fields come first: otherwise the
// name of an object might come after pages of its content.
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

// yamlNode reads one JSON value as a YAML node. A YAML parser would refuse control characters, which texts from proxies may
// contain.
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

// Row of a table. Notes are lines below the row.
type Row struct {
	Cells []string
	Notes []string
	// Wide are the cells without abbreviations, and more those of further columns.
	Wide, More []string
}

// maxWidth is how many characters of a cell widen its column: one name that is longer shifts its own row alone.
const maxWidth = 64

// WriteTable writes a table with aligned columns.
func WriteTable(out *bytes.Buffer, header []string, rows []Row) {
	(&Columns{}).Write(out, append([]Row{{Cells: header}}, rows...))
}

// Facts are lines of a name and a text each.
type Facts struct{ rows []Row }

// Add adds a line.
func (f *Facts) Add(name, text string) {
	f.rows = append(f.rows, Row{Cells: []string{name + ":", text}})
}

// Write writes the lines, with the texts below each other.
func (f *Facts) Write(out *bytes.Buffer) { (&Columns{}).Write(out, f.rows) }

// Columns are the widths of the columns of a table that is written in parts. They only grow.
type Columns struct{ widths []int }

// Write writes rows. An empty cell is "-", so that each row has as many words as columns.
func (c *Columns) Write(out *bytes.Buffer, rows []Row) {
	clean := make([][]string, len(rows))
	for i, r := range rows {
		for at, cell := range r.Cells {
			clean[i] = append(clean[i], cmp.Or(OneLine(cell), "-"))
			if at == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			if n := utf8.RuneCountInString(clean[i][at]); n <= maxWidth {
				c.widths[at] = max(c.widths[at], n)
			}
		}
	}
	for i, r := range rows {
		var line strings.Builder
		for at, cell := range clean[i] {
			line.WriteString(cell + strings.Repeat(" ", max(0, c.widths[at]-utf8.RuneCountInString(cell))+3))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		for _, note := range r.Notes {
			out.WriteString("  " + OneLine(note) + "\n")
		}
	}
}
