package store

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// isTemplate matches unfilled templates of Kuma and others: {{ name }}, {% if %}, ${NAME}, $(NAME).
var isTemplate = regexp.MustCompile(`\{\{|\{%|\$\{\w|\$\(\w`)

const templateText = "is a template, and files are read as they are: write the value, or fill the template in before the file is put here, for instance with envsubst"

// templates reports unfilled templates in values. It skips fields that are not read, and headers, which may hold any
// text, such as a password.
func (d *decoder) templates(n *yaml.Node, path string) {
	f, ok := lookUp(kumaFields[d.kind], indexPattern.ReplaceAllString(strings.TrimPrefix(path, "spec."), "[]"))
	if ok && f.refused == "" || path == "status" || path == "metadata.annotations" || mesh.MayBeSecret(path) {
		return
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if isTemplate.MatchString(n.Value) {
			d.fail(n, path, valueText(n), templateText)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			d.templates(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case yaml.MappingNode:
		for _, p := range pairs(n) {
			d.templates(p.value, join(path, p.name()))
		}
	}
}

// isUnquotedTemplate reports whether YAML has read {{ name }} as a mapping whose key is a mapping.
func isUnquotedTemplate(n *yaml.Node) bool {
	return n.Kind == yaml.MappingNode && slices.ContainsFunc(pairs(n),
		func(p pair) bool { return p.key.Kind == yaml.MappingNode })
}

// templateLine returns the first line with a template outside comments, 0 without one.
func templateLine(text []byte) int {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if trimmed := bytes.TrimSpace(line); len(trimmed) > 0 && trimmed[0] != '#' && isTemplate.Match(trimmed) {
			return number
		}
	}
	return 0
}
