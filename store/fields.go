package store

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/json"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// written is the value of a field, and the field's first line.
type written struct {
	value *yaml.Node
	line  int
}

// pair is a field of a mapping.
type pair struct{ key, value *yaml.Node }

func (p pair) name() string { return p.key.Value }

func pairs(n *yaml.Node) []pair {
	list := make([]pair, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		list = append(list, pair{n.Content[i], n.Content[i+1]})
	}
	return list
}

func find(in []pair, name string) (pair, bool) {
	i := slices.IndexFunc(in, func(p pair) bool { return p.name() == name })
	if i < 0 {
		return pair{}, false
	}
	return in[i], true
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func isString(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" }

// valueText returns a value for an error message.
func valueText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	}
	return mesh.Shorten(n.Value, maxValue)
}

// standardTags are the tags that YAML itself resolves; any other tag would change what a value means.
var standardTags = []string{"!!null", "!!bool", "!!int", "!!float", "!!str", "!!map", "!!seq", "!!timestamp"}

// check rejects YAML features that objects do not need, anywhere in the document. A duplicate key hides what was meant.
// A few aliases can expand to a huge value, and so can the paths of deeply nested fields or of very long names.
func (d *decoder) check(n *yaml.Node, path string, depth int) {
	if depth > maxDepth {
		d.fail(n, path, "", fmt.Sprintf("is nested too deeply: at most %d levels are read", maxDepth))
		return
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.fail(n, path, "", "anchors and aliases are not read: write the value out")
		return
	}
	if isUnquotedTemplate(n) {
		if path == "" {
			d.report(d.line(n), Error, errors.New("the document "+templateText))
			return
		}
		d.fail(n, path, valueText(n), templateText)
		return
	}
	tag := n.ShortTag()
	if !slices.Contains(standardTags, tag) {
		d.fail(n, path, n.Tag, "tags of YAML are not read")
		return
	}
	d.fields[path] = written{n, d.line(n)}
	d.unusual = d.unusual || tag == "!!int" && !isPort(n.Value)
	if tag == "!!null" && isProbeHandler.MatchString(path) { // all its fields are optional
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			d.check(item, fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
	case yaml.MappingNode:
		d.checkFields(n, path, depth)
	}
}

// checkFields checks the fields of a mapping.
func (d *decoder) checkFields(n *yaml.Node, path string, depth int) {
	first := map[string]int{}
	for _, p := range pairs(n) {
		if p.key.Kind != yaml.ScalarNode || p.key.Anchor != "" || p.key.ShortTag() == "!!merge" {
			d.fail(p.key, path, valueText(p.key), "must have plain names of fields")
			continue
		}
		if len(p.name()) > maxField {
			d.fail(p.key, path, valueText(p.key), fmt.Sprintf("must have names of fields of at most %d bytes", maxField))
			continue
		}
		inner := join(path, p.name())
		if line, used := first[p.name()]; used {
			d.fail(p.key, inner, valueText(p.value), fmt.Sprintf("must come once: it is on line %d too", line))
		} else {
			first[p.name()] = d.line(p.key)
		}
		d.check(p.value, inner, depth+1)
		d.fields[inner] = written{p.value, d.line(p.key)}
	}
}

// isPort reports whether a number is a port, which any port field accepts.
func isPort(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0 && text[0] != '0'
}

// freeKeys are the names of mappings whose keys users choose.
var freeKeys = []string{"tags", "dataplaneTags", "labels", "matchLabels", "annotations"}

func join(path, name string) string {
	switch {
	case path == "":
		return name
	case slices.Contains(freeKeys, path[strings.LastIndexByte(path, '.')+1:]):
		return path + "[" + strconv.Quote(name) + "]"
	}
	return path + "." + name
}

// mapping returns the fields of a mapping; null counts as an empty one.
func (d *decoder) mapping(n *yaml.Node, path string) []pair {
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, valueText(n), "must be a mapping of fields")
		return nil
	}
	return pairs(n)
}

// decode decodes a value of that path into the variable that into points to. To report all problems, it checks
// values again that the library rejects, and each number that has a limit.
func (d *decoder) decode(n *yaml.Node, path string, into any) {
	unknown, err := json.UnmarshalStrict(toJSON(n), into)
	if err == nil && len(unknown) == 0 && !d.unusual {
		return
	}
	reflect.ValueOf(into).Elem().SetZero()
	d.correct(n, path, into)
	mesh.CheckJSON(path, toJSON(n), into, d.refuse, func(path, name string, known []string) {
		if path == name {
			known = slices.Concat(d.beside(), known)
		}
		d.unknown(path, strings.TrimPrefix(path, d.root), name, known)
	})
	if err := json.UnmarshalCaseSensitivePreserveInts(toJSON(n), into); err != nil {
		d.report(d.place.Line, Error, err)
	}
}

// refuse reports a value that its field does not allow, as it was written. The value that replaces it must not cause
// further errors.
func (d *decoder) refuse(f *mesh.FieldError) {
	if !d.isReplaced(f.Field) {
		d.refuseAsWritten(f)
	}
	n := d.fields[f.Field].value
	switch {
	case f.Allowed == mesh.AllowedObject:
		n.Kind, n.Tag, n.Content = yaml.MappingNode, "!!map", nil
	case f.Allowed == mesh.AllowedText && n.Kind == yaml.ScalarNode:
		n.Tag = "!!str"
	default:
		n.Kind, n.Tag, n.Content = yaml.ScalarNode, "!!null", nil
	}
}

func (d *decoder) refuseAsWritten(f *mesh.FieldError) {
	n, allowed := d.fields[f.Field].value, f.Allowed
	switch {
	case allowed == mesh.AllowedObject:
		allowed = "must be a mapping of fields"
	case allowed == mesh.AllowedDuration && n.ShortTag() == "!!int":
		allowed += ", with its unit"
	}
	d.fail(n, f.Field, valueText(n), allowed)
}

// isProbeHandler matches the paths of the handlers of a serviceProbe, which are complete even without a value, as in
// "grpc:".
var isProbeHandler = regexp.MustCompile(`\.serviceProbe\.(tcp|httpGet|tcpSocket|grpc)$`)

var indexPattern = regexp.MustCompile(`\[\d+\]`)

// unknown reports an unknown field. A field of Kuma's without effect is ignored, with a warning; any other is an error.
// field is its path in the model.
func (d *decoder) unknown(path, field, name string, known []string) {
	n, line := d.fields[path].value, d.fields[path].line
	refuse := func(why string) { d.report(line, Error, &mesh.FieldError{Field: path, Allowed: why}) }
	f, ok := lookUp(kumaFields[d.kind], indexPattern.ReplaceAllString(field, "[]"))
	switch {
	case !ok:
		refuse(notAField(path, name, known))
		d.standsFor(path, name, known)
	case f.refused != "":
		refuse(f.refused)
		if f.by != "" {
			d.replaced = append(d.replaced, strings.TrimSuffix(path, name)+f.by)
		}
	case f.filled != "" && hasItems(n):
		refuse("is a field by which Kuma rejects Dataplanes, but Sonde does not: " + f.filled)
	case !isNull(n):
		allowed := "is a field of Kuma's that Sonde does not have, and is ignored"
		if f.means != "" {
			allowed += ": " + f.means
		}
		d.report(line, Warning, &mesh.FieldError{Field: path, Allowed: allowed})
	}
}

// notAField says what to write instead of a field that does not exist.
func notAField(path, name string, known []string) string {
	switch {
	case path == "apiVersion" || path == "kind":
		return "is a field of the Kubernetes form: remove it, since type says the same"
	case strings.HasPrefix(name, mesh.Prefix) && slices.Contains(known, "tags"):
		return "is a tag: write it below tags"
	case strings.HasPrefix(name, mesh.Prefix) && slices.Contains(known, "labels"):
		return "is a label: write it below labels"
	}
	return mesh.UnknownField(name, known)
}

// isMisplaced reports whether an unknown field is a known field in the wrong place, rather than a typo.
func isMisplaced(path, name string, known []string) bool {
	return notAField(path, name, known) != mesh.UnknownField(name, known)
}

// hasItems reports whether a value contains a list with an item.
func hasItems(n *yaml.Node) bool {
	return n.Kind == yaml.SequenceNode && len(n.Content) > 0 || slices.ContainsFunc(n.Content, hasItems)
}

// lookUp finds a field of Kuma's by its path. The last name in the path may have the form of protobuf, as in
// service_probe.
func lookUp(fields map[string]kumaField, path string) (f kumaField, ok bool) {
	if f, ok = fields[path]; ok {
		return f, true
	}
	at := strings.LastIndexByte(path, '.') + 1
	words := strings.Split(path[at:], "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	f, ok = fields[path[:at]+strings.Join(words, "")]
	return f, ok
}
