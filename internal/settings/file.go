package settings

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxFile limits a configuration file, in bytes.
const maxFile = 1 << 20

// ReadFile sets all unset flags from a YAML file, and returns the place of each value. It returns an error that names
// the line for an unknown or duplicate key, or a value that its flag does not accept. keys are Options.Keys.
func ReadFile(path string, flags *pflag.FlagSet, keys Keys) (Places, error) {
	document, err := readYAML(path)
	if err != nil || document == nil {
		return nil, err
	}
	f := &file{path: path, flags: map[string]*pflag.Flag{}, names: Places{}, lines: map[string]int{}}
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != flagConfig && flag.Name != "help" && flag.Name != "version" {
			f.flags[keys.Of(flag.Name)] = flag
		}
	})
	f.readMapping(document, "")
	return f.names, errors.Join(f.errs...)
}

// readYAML returns the single document of a file, nil if it is empty.
func readYAML(path string) (*yaml.Node, error) {
	r, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read --config: %w", err)
	}
	defer r.Close() //nolint:errcheck // opened for reading
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read --config: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read --config %s: must be at most %d bytes", path, maxFile)
	}
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var first, second yaml.Node
	if err := decoder.Decode(&first); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil //nolint:nilnil // an empty file has no settings
		}
		return nil, fmt.Errorf("read --config %s: %w", path, err)
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read --config %s: must be one YAML document", path)
	}
	return first.Content[0], nil
}

// noMapping is FieldError.Allowed for values other than mappings.
const noMapping = "must be keys with values"

// file is a file being read.
type file struct {
	path  string
	flags map[string]*pflag.Flag // by key
	names Places
	lines map[string]int // line of each key so far
	errs  []error
}

func (f *file) place(at *yaml.Node, key string) string {
	place := f.path + ", line " + strconv.Itoa(at.Line)
	if key != "" {
		place += ": " + key
	}
	return place
}

func (f *file) refuse(at *yaml.Node, key, allowed string) {
	f.errs = append(f.errs, &mesh.FieldError{Field: f.place(at, key), Allowed: allowed})
}

// readMapping reads keys and values, such as those below "runtime.kubernetes.". It rejects an alias, which could refer
// to the mapping that contains it.
func (f *file) readMapping(node *yaml.Node, prefix string) {
	if node.Kind != yaml.MappingNode {
		f.refuse(node, strings.TrimSuffix(prefix, "."), noMapping)
		return
	}
	for pair := range slices.Chunk(node.Content, 2) {
		name, value := pair[0], pair[1]
		key := prefix + name.Value
		if line, twice := f.lines[key]; twice {
			f.refuse(name, key, "is already on line "+strconv.Itoa(line))
			continue
		}
		f.lines[key] = name.Line
		if value.Kind == yaml.MappingNode && f.isPrefix(key+".") {
			f.readMapping(value, key+".")
			continue
		}
		flag := f.flags[key]
		switch {
		case flag == nil && f.isPrefix(key+"."):
			f.refuse(name, key, noMapping)
		case flag == nil:
			f.refuse(name, key, mesh.UnknownField(name.Value, f.known(prefix)))
			if near, _ := mesh.Nearest(name.Value, f.known(prefix)); f.flags[prefix+near] != nil {
				// do not also report the flag as missing: its key is only misspelt
				f.names["--"+f.flags[prefix+near].Name] = Place{Name: f.place(name, key)}
			}
		case !flag.Changed:
			f.names["--"+flag.Name] = Place{f.place(name, key), isBare(value)}
			f.set(flag, name, key, value)
		}
	}
}

func (f *file) isPrefix(prefix string) bool { return len(f.known(prefix)) > 0 }

// known returns the names allowed in the mapping at prefix, sorted.
func (f *file) known(prefix string) []string {
	var names []string
	for key := range f.flags {
		if rest, ok := strings.CutPrefix(key, prefix); ok {
			name, _, _ := strings.Cut(rest, ".")
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// set sets a flag to the value at a key.
func (f *file) set(flag *pflag.Flag, at *yaml.Node, key string, value *yaml.Node) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	target := original(flag.Value)
	must := "must be one value, as --" + flag.Name
	list, isList := target.(pflag.SliceValue)
	if isList {
		must += ", or a list of texts"
	}
	if isList && value.Kind == yaml.SequenceNode && !slices.ContainsFunc(value.Content, notText) {
		texts := make([]string, len(value.Content))
		for i, item := range value.Content {
			texts[i] = item.Value
		}
		if err := list.Replace(texts); err != nil {
			f.refuse(at, key, err.Error())
		}
		return
	}
	if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
		f.refuse(at, key, must)
		return
	}
	text := value.Value
	if is := false; target.Type() == "bool" && value.Style == 0 && value.Decode(&is) == nil { // e.g. "yes" in YAML
		text = strconv.FormatBool(is)
	}
	if err := target.Set(text); err != nil {
		e := fieldError(f.place(at, key), target, text, err)
		e.Bare = isBare(value)
		f.errs = append(f.errs, e)
	}
}

// isBare reports whether a value is a number, true or false, rather than text.
func isBare(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float" || n.ShortTag() == "!!bool")
}

func notText(n *yaml.Node) bool { return n.Kind != yaml.ScalarNode || n.Tag != "!!str" }

// Keys maps flags that are not at the top of the file to a prefix such as "runtime.kubernetes.", or to the whole key
// without a final dot, such as "guardedLiveness.mode".
type Keys map[string]string

// Of returns the key of a flag.
func (k Keys) Of(flag string) string {
	if key := k[flag]; key != "" && !strings.HasSuffix(key, ".") {
		return key
	}
	return k[flag] + Key(flag)
}

// Key returns the key of a flag at the top of the file: stateDir for state-dir.
func Key(flag string) string {
	parts := strings.Split(flag, "-")
	for i, part := range parts[1:] {
		parts[i+1] = string(unicode.ToUpper(rune(part[0]))) + part[1:]
	}
	return strings.Join(parts, "")
}
