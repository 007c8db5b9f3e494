package store

import (
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
	if runes := []rune(n.Value); len(runes) > 100 {
		return string(runes[:100]) + "..."
	}
	return n.Value
}

// standardTags are the tags that YAML itself resolves; any other would change what a value means.
var standardTags = []string{"!!null", "!!bool", "!!int", "!!float", "!!str", "!!map", "!!seq", "!!timestamp"}

// check refuses, in the whole document, what YAML allows and objects do not need: a key that occurs twice hides what was
// meant, and a short text of aliases can expand to a huge value.
func (d *decoder) check(n *yaml.Node, path string) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		d.fail(n, path, "", "anchors and aliases are not read: write the value out")
		return
	}
	if !slices.Contains(standardTags, n.ShortTag()) {
		d.fail(n, path, n.Tag, "tags of YAML are not read")
		return
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for i, item := range n.Content {
			d.check(item, fmt.Sprintf("%s[%d]", path, i))
		}
	case yaml.MappingNode:
		first := map[string]int{}
		for _, p := range pairs(n) {
			inner := join(path, p.name())
			if p.key.Kind != yaml.ScalarNode || p.key.Anchor != "" || p.key.ShortTag() == "!!merge" {
				d.fail(p.key, path, valueText(p.key), "must have plain names of fields")
				continue
			}
			if line, used := first[p.name()]; used {
				d.fail(p.key, inner, valueText(p.value), fmt.Sprintf("must come once: it is on line %d too", line))
			} else {
				first[p.name()] = d.line(p.key)
			}
			d.check(p.value, inner)
		}
	}
}

// freeKeys matches the paths of mappings whose keys users choose.
var freeKeys = regexp.MustCompile(`(^|\.)(tags|labels|annotations)$`)

func join(path, name string) string {
	switch {
	case path == "":
		return name
	case freeKeys.MatchString(path):
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

// fields reads fields into a struct. root is the path of the struct with the separator, such as "spec.".
func (d *decoder) fields(from []pair, root string, to reflect.Value) {
	byName := make(map[string]int, to.NumField())
	names := make([]string, 0, to.NumField())
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
		if !isString(n) {
			d.fail(n, path, valueText(n), "must be a text: put it in quotes")
		}
		to.SetString(n.Value)
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.fail(n, path, valueText(n), "must be true or false")
		}
		to.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Uint32:
		to.SetUint(d.port(n, path))
	default:
		panic("store: the model has a field of a type that is not read: " + to.Type().String())
	}
}

// duration reads the only signed number of the model.
func (d *decoder) duration(n *yaml.Node, path string, to reflect.Value) {
	length, err := mesh.ParseDuration(n.Value)
	if !isString(n) || err != nil {
		d.fail(n, path, valueText(n), mesh.AllowedDuration)
		return
	}
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
	if note, ok := kumaFields[d.kind][indexPattern.ReplaceAllString(modelPath, "[]")]; ok {
		d.report(d.line(p.key), Warning, &mesh.FieldError{Field: path, Allowed: "is a field of Kuma's that Sonde does not have, and is ignored" + note})
		return
	}
	allowed := "is an unknown field"
	if len(known) > 0 {
		allowed += ": known here are " + strings.Join(known, ", ")
	}
	d.report(d.line(p.key), Error, &mesh.FieldError{Field: path, Allowed: allowed})
}
