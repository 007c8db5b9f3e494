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

	"github.com/sonde-mesh/sonde/api/mesh"
)

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

// valueText returns a value as errors show it.
func valueText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "{...}"
	case yaml.SequenceNode:
		return "[...]"
	}
	return cut(n.Value, maxValue)
}

// standardTags are the tags that YAML itself resolves; any other would change what a value means.
var standardTags = []string{"!!null", "!!bool", "!!int", "!!float", "!!str", "!!map", "!!seq", "!!timestamp"}

// check refuses, in the whole document, what YAML allows and objects do not need: a key that occurs twice hides what was
// meant, and a short text of aliases can expand to a huge value. So do paths of deeply nested fields, and of very long names.
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
	if !slices.Contains(standardTags, n.ShortTag()) {
		d.fail(n, path, n.Tag, "tags of YAML are not read")
		return
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
	}
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
	d.lines[path] = d.line(n)
	if isNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, valueText(n), "must be a mapping of fields")
		return nil
	}
	return pairs(n)
}

// fields reads fields into a struct. root is the path of the struct with the separator, such as "spec.". beside are the names of the
// fields beside them, which somebody may have meant.
func (d *decoder) fields(from []pair, root string, to reflect.Value, beside ...string) {
	byName := make(map[string]int, to.NumField())
	names := slices.Clone(beside)
	for i := range to.NumField() {
		name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
		byName[name] = i
		names = append(names, name)
	}
	for _, p := range from {
		path := root + p.name()
		if i, ok := byName[p.name()]; ok {
			d.value(p.value, path, to.Field(i))
			d.lines[path] = d.line(p.key)
		} else {
			d.unknown(p, path, strings.TrimPrefix(path, d.root), names)
		}
	}
}

// value reads one value into a field of the model. null counts as a field that is left out.
func (d *decoder) value(n *yaml.Node, path string, to reflect.Value) {
	d.lines[path] = d.line(n)
	if isNull(n) {
		if isProbeHandler.MatchString(path) { // all its fields are optional
			to.Set(reflect.New(to.Type().Elem()))
		}
		return
	}
	switch to.Kind() {
	case reflect.Int64:
		d.duration(n, path, to)
	case reflect.Pointer:
		target := reflect.New(to.Type().Elem())
		d.value(n, path, target.Elem())
		to.Set(target)
	case reflect.Struct:
		d.fields(d.mapping(n, path), path+".", to)
	case reflect.Slice:
		d.list(n, path, to)
	case reflect.Map:
		d.stringMap(n, path, to)
	case reflect.String:
		d.text(n, path, to)
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.fail(n, path, valueText(n), "must be true or false")
		}
		to.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Uint32:
		to.SetUint(d.port(n, path))
	case reflect.Int32:
		to.SetInt(d.number(n, path))
	default:
		panic("store: the model has a field of a type that is not read: " + to.Type().String())
	}
}

// text reads a text, and where a field takes either, a port.
func (d *decoder) text(n *yaml.Node, path string, to reflect.Value) {
	switch isText := isString(n); {
	case isText:
	case to.Type() == reflect.TypeFor[mesh.TargetPort]():
		d.port(n, path)
	default:
		d.fail(n, path, valueText(n), "must be a text: put it in quotes")
	}
	to.SetString(n.Value)
}

// duration reads a number of nanoseconds, which is written as a text.
func (d *decoder) duration(n *yaml.Node, path string, to reflect.Value) {
	length, err := mesh.ParseDuration(n.Value)
	switch {
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int":
		d.fail(n, path, valueText(n), mesh.AllowedDuration+", with its unit")
		return
	case !isString(n) || err != nil:
		d.fail(n, path, valueText(n), mesh.AllowedDuration)
		return
	}
	d.written[path] = valueText(n)
	to.Set(reflect.ValueOf(length))
}

// port reads a number: every unsigned number of the model is a port. It refuses a 0 that was written, which Validate
// would only see after the default has taken its place.
func (d *decoder) port(n *yaml.Node, path string) uint64 {
	number, err := strconv.ParseUint(n.Value, 10, 16)
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || number == 0 || n.Value[0] == '0' {
		d.fail(n, path, valueText(n), "must be a port from 1 to 65535, a number without quotes")
		return 0
	}
	return number
}

// number reads a signed number, which is a count, a number of seconds or a port. Like port it refuses a 0. One that is too large for
// the model is its largest, for Validate to say what the limit of the field is.
func (d *decoder) number(n *yaml.Node, path string) int64 {
	number, err := strconv.ParseInt(n.Value, 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		err = nil
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil || number < 1 || n.Value[0] == '0' {
		d.fail(n, path, valueText(n), mesh.AllowedNumber)
		return 0
	}
	d.written[path] = valueText(n)
	return number
}

func (d *decoder) list(n *yaml.Node, path string, to reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, valueText(n), "must be a list")
		return
	}
	items := reflect.MakeSlice(to.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		d.value(item, fmt.Sprintf("%s[%d]", path, i), items.Index(i))
	}
	to.Set(items)
}

func (d *decoder) stringMap(n *yaml.Node, path string, to reflect.Value) {
	from := d.mapping(n, path)
	if len(from) == 0 {
		return
	}
	texts := reflect.MakeMapWithSize(to.Type(), len(from))
	for _, p := range from {
		text := reflect.New(to.Type().Elem()).Elem()
		d.value(p.value, join(path, p.name()), text)
		texts.SetMapIndex(reflect.ValueOf(p.name()), text)
	}
	to.Set(texts)
}

var indexPattern = regexp.MustCompile(`\[\d+\]`)

// unknown reports a field that the model lacks: a field of Kuma's is ignored with a warning, any other is an error.
func (d *decoder) unknown(p pair, path, modelPath string, known []string) {
	modelPath = indexPattern.ReplaceAllString(modelPath, "[]")
	if instead, ok := lookUp(refusingFields[d.kind], modelPath); ok && hasItems(p.value) {
		d.report(d.line(p.key), Error, &mesh.FieldError{Field: path, Allowed: "is a field by which Kuma refuses Dataplanes, and Sonde does not: " + instead})
		return
	}
	if note, ok := lookUp(kumaFields[d.kind], modelPath); ok {
		if isNull(p.value) {
			return // it is left out
		}
		d.report(d.line(p.key), Warning, &mesh.FieldError{Field: path, Allowed: "is a field of Kuma's that Sonde does not have, and is ignored" + note})
		return
	}
	if why, ok := refusedProbeField(modelPath); ok && d.kind == mesh.KindDataplane {
		d.report(d.line(p.key), Error, &mesh.FieldError{Field: path, Allowed: why})
		return
	}
	allowed := mesh.UnknownField(p.name(), known)
	former, isFormer := lookUp(formerFields[d.kind], modelPath)
	switch {
	case isFormer:
		allowed = "is a field of earlier releases of Kuma: " + former.instead
		if former.by != "" {
			d.replaced = append(d.replaced, path[:strings.LastIndexByte(path, '.')+1]+former.by)
		}
	case path == "apiVersion" || path == "kind":
		allowed = "is a field of the Kubernetes form: remove it, since type says the same"
	case strings.HasPrefix(p.name(), mesh.Prefix) && slices.Contains(known, "tags"):
		allowed = "is a tag: write it below tags"
	case strings.HasPrefix(p.name(), mesh.Prefix) && slices.Contains(known, "labels"):
		allowed = "is a label: write it below labels"
	}
	d.report(d.line(p.key), Error, &mesh.FieldError{Field: path, Allowed: allowed})
}

// hasItems reports whether there is a list with an item in a value.
func hasItems(n *yaml.Node) bool {
	return n.Kind == yaml.SequenceNode && len(n.Content) > 0 || slices.ContainsFunc(n.Content, hasItems)
}

// lookUp finds a field of Kuma's by its path, of which the last name may be in the form of protobuf: service_probe.
func lookUp[T any](fields map[string]T, path string) (note T, ok bool) {
	if note, ok = fields[path]; ok {
		return note, true
	}
	at := strings.LastIndexByte(path, '.') + 1
	words := strings.Split(path[at:], "_")
	for i, w := range words[1:] {
		if w != "" {
			words[i+1] = strings.ToUpper(w[:1]) + w[1:]
		}
	}
	note, ok = fields[path[:at]+strings.Join(words, "")]
	return note, ok
}
