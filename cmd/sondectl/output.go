package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// format is the value of -o.
type format string

const (
	table      format = "table"
	wideFormat format = "wide"
	nameFormat format = "name"
	textFormat format = "text"
	yamlFormat format = "yaml"
	jsonFormat format = "json"
)

// choice is a flag whose value is one of a few words.
type choice[T ~string] struct {
	value T
	among []T
}

// String implements pflag.Value.
func (c *choice[T]) String() string { return string(c.value) }

// Type implements pflag.Value.
func (c *choice[T]) Type() string { return strings.Join(c.words(), "|") }

// Set implements pflag.Value.
func (c *choice[T]) Set(s string) error {
	if !slices.Contains(c.among, T(s)) {
		return fmt.Errorf("must be one of %s", strings.Join(c.words(), ", "))
	}
	c.value = T(s)
	return nil
}

func (c *choice[T]) words() []string {
	words := make([]string, len(c.among))
	for i, word := range c.among {
		words[i] = string(word)
	}
	return words
}

// add adds the flag to cmd, with completion.
func (c *choice[T]) add(cmd *cobra.Command, name, short, usage string) {
	cmd.Flags().VarP(c, name, short, usage)
	must(cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.words(), cobra.ShellCompDirectiveNoFileComp)))
}

// addFormat adds the flag -o to cmd. The first format is the default.
func addFormat(cmd *cobra.Command, among ...format) *choice[format] {
	f := &choice[format]{value: among[0], among: among}
	f.add(cmd, "output", "o", "how to write it")
	return f
}

// must panics on an error that only a mistake in this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// writeJSON writes v as indented JSON.
func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// writeYAML writes v as YAML, by way of its JSON and in the order of it, except that scalar fields come first: otherwise the
// name of an object might come after pages of its content.
func writeYAML(w io.Writer, v any) error {
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

// row of a table. Notes are lines below the row.
type row struct {
	cells []string
	notes []string
	// wide are the cells without abbreviations, and more those of further columns.
	wide, more []string
}

// maxWidth is how many characters of a cell widen its column: one name that is longer shifts its own row alone.
const maxWidth = 64

// writeTable writes a table with aligned columns.
func writeTable(w io.Writer, header []string, rows []row) error {
	return (&columns{}).write(w, append([]row{{cells: header}}, rows...))
}

// columns are the widths of the columns of a table that is written in parts. They only grow.
type columns struct{ widths []int }

// write writes rows. An empty cell is "-", so that each row has as many words as columns.
func (c *columns) write(w io.Writer, rows []row) error {
	clean := make([][]string, len(rows))
	for i, r := range rows {
		for at, cell := range r.cells {
			clean[i] = append(clean[i], cmp.Or(oneLine(cell), "-"))
			if at == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			if n := utf8.RuneCountInString(clean[i][at]); n <= maxWidth {
				c.widths[at] = max(c.widths[at], n)
			}
		}
	}
	var out bytes.Buffer
	for i, r := range rows {
		var line strings.Builder
		for at, cell := range clean[i] {
			line.WriteString(cell + strings.Repeat(" ", max(0, c.widths[at]-utf8.RuneCountInString(cell))+3))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		for _, note := range r.notes {
			out.WriteString("  " + oneLine(note) + "\n")
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}
