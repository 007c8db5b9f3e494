package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Decode reads every document of a YAML (or JSON) file: fields at the top level as in Kuma's Universal form, or under
// spec with name and mesh at the top level or in metadata. It is strict. The returned objects have their defaults and
// are valid; documents with an Error are left out. If an object occurs twice, the second document has an Error.
func Decode(file string, data []byte) ([]Document, []Problem) {
	entries, problems, _ := decodeFile(file, data, "")
	documents := make([]Document, 0, len(entries))
	for _, e := range entries {
		documents = append(documents, e.Document)
	}
	return documents, problems
}

// decodeFile is Decode with a default probes mode for Dataplanes. It also returns the names of the Meshes that have an
// Error.
func decodeFile(file string, data []byte, mode mesh.ProbesMode) (entries []entry, problems []Problem,
	refused []string) {
	whole := func(format string, args ...any) []Problem {
		return []Problem{{Place: Place{File: file}, Severity: Error, Err: fmt.Errorf(format, args...)}}
	}
	if len(data) > maxFile {
		return nil, whole("a file may have at most %d MiB", maxFile>>20), nil
	}
	if !utf8.Valid(data) {
		return nil, whole("the text must be UTF-8"), nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	parts := slices.DeleteFunc(Split(data), func(p Part) bool {
		return !isBegin(p.Text) && !HasContent(p.Text)
	})
	if len(parts) > maxDocuments {
		return nil, whole("a file may have at most %d documents, this one has %d", maxDocuments, len(parts)), nil
	}
	first := map[mesh.Key]Place{}
	for i, p := range parts {
		d := &decoder{mode: mode, place: Place{File: file, Document: i + 1, Line: p.Line}, offset: p.Line - 1,
			fields: map[string]written{}}
		e := d.document(p.Text)
		if e != nil {
			if other, used := first[e.Object.Key()]; used {
				d.problems = append(d.problems, duplicate(*e, other))
				e = nil
			} else {
				first[e.Object.Key()] = e.Place
			}
		}
		switch {
		case e != nil:
			entries = append(entries, *e)
		case d.kind == mesh.KindMesh:
			refused = append(refused, d.nameOfMesh())
		}
		problems = append(problems, d.problems...)
	}
	return entries, limitProblems(problems), refused
}

// nameOfMesh returns the name in a Mesh that has an Error.
func (d *decoder) nameOfMesh() string {
	for _, path := range []string{"name", "metadata.name"} {
		if f, ok := d.fields[path]; ok && isString(f.value) {
			return f.value.Value
		}
	}
	return ""
}

// limitProblems keeps the first maxProblems problems of a file.
func limitProblems(problems []Problem) []Problem {
	if len(problems) <= maxProblems {
		return problems
	}
	more := Problem{Place: Place{File: problems[0].File},
		Err: errors.New("too many problems, further ones are not listed")}
	for _, p := range problems[maxProblems:] {
		more.Severity = max(more.Severity, p.Severity)
	}
	return append(problems[:maxProblems:maxProblems], more)
}

// decoder reads one document.
type decoder struct {
	mode     mesh.ProbesMode // default for Dataplanes
	place    Place
	offset   int                // lines of the file before this document's first
	fields   map[string]written // by path: all fields of the document
	unusual  bool               // a field is a number that is not a port
	kind     mesh.Kind
	root     string   // path prefix of the fields of the spec: "" or "spec."
	labelsAt string   // path prefix of the labels: "" or "metadata."
	replaced []string // paths of fields for which another name, old or misspelt, was written
	strange  []string // paths of mappings with unknown fields: a field that is missing there may be one of them
	problems []Problem
	failed   bool
}

func (d *decoder) report(line int, severity Severity, err error) {
	d.failed = d.failed || severity == Error
	place := d.place
	place.Line = line
	p := Problem{Place: place, Severity: severity, Err: shortened(err)}
	switch {
	case len(d.problems) <= maxProblems:
		d.problems = append(d.problems, p)
	case severity == Error:
		d.problems[maxProblems] = p // so that limitProblems still sees an Error
	}
}

// shortened returns an error with very long texts cut, so that a log can hold it.
func shortened(err error) error {
	f, ok := errors.AsType[*mesh.FieldError](err)
	if !ok {
		return err
	}
	short := *f
	short.Field, short.Value, short.Allowed = mesh.Shorten(f.Field, maxField), mesh.Shorten(f.Value, maxValue),
		mesh.Shorten(f.Allowed, maxAllowed)
	return &short
}

func (d *decoder) line(n *yaml.Node) int { return n.Line + d.offset }

// fail reports a field with an invalid value, but leaves out a value that may be secret.
func (d *decoder) fail(n *yaml.Node, path, value, allowed string) {
	if !isShown(path) {
		value = ""
	}
	d.report(d.line(n), Error, &mesh.FieldError{Field: path, Value: value, Bare: value == valueText(n) && !isString(n),
		Allowed: allowed})
}

// document reads one document. It returns nil if it is empty or has an Error.
func (d *decoder) document(text []byte) *entry {
	if len(text) > maxDocument {
		d.report(d.place.Line, Error, fmt.Errorf("a document may have at most %d MiB, this one has %d bytes",
			maxDocument>>20, len(text)))
		return nil
	}
	top := d.parse(text)
	if top == nil || d.failed {
		return nil
	}
	d.place.Line = d.line(top)
	e := d.object(top)
	if e == nil {
		return nil
	}
	switch o := e.Object.(type) {
	case *mesh.Dataplane:
		o.ProbesMode = d.mode
	case *mesh.Mesh:
		if f, ok := d.fields[d.inFile("mtls")]; ok && isNull(f.value) && f.value.Value == "" {
			o.Spec.MTLS = &mesh.MTLS{} // "mtls:" with everything below commented out, as opposed to a tool's null
		}
	}
	e.Object.SetDefaults()
	if d.validate(e); d.failed {
		return nil
	}
	d.warn(e.Object) // after an error, a field that was written may look missing
	return e
}

// parse returns the mapping at the top of a document, nil if the document is empty or has an Error.
func (d *decoder) parse(text []byte) *yaml.Node {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(fromJSON(withoutMark(text))))
	err := decoder.Decode(&document)
	if err == nil && !errors.Is(decoder.Decode(&second), io.EOF) {
		err = errors.New("a second document must begin with --- on a line of its own")
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		line, err := d.syntax(text, err)
		d.report(line, Error, err)
		return nil
	}
	top := document.Content[0]
	if d.check(top, "", 0); d.failed || isNull(top) {
		return nil
	}
	if top.Kind != yaml.MappingNode {
		must := "a document must be a mapping with the fields type and name"
		if top.Kind == yaml.SequenceNode {
			must += ", and this is a list: " + noList
		}
		d.report(d.line(top), Error, errors.New(must))
		return nil
	}
	return top
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// syntax splits an error of the YAML library into the line within the file and the message. The library counts lines
// from the start of the document.
func (d *decoder) syntax(text []byte, err error) (int, error) {
	if line := templateLine(text); line > 0 {
		return line + d.offset, errors.New("invalid YAML: the line " + templateText)
	}
	message := err.Error()
	match := yamlLine.FindStringSubmatch(message)
	line := 1
	if n, convErr := strconv.Atoi(match[1]); convErr == nil {
		line = n
	}
	message = strings.TrimPrefix(message, match[0])
	if strings.HasPrefix(message, "unknown anchor") { // it quotes the text, which may be a password that begins with *
		message = "unknown anchor: put a value that begins with * in quotes"
	}
	badStart := strings.Contains(message, "cannot start any token")
	switch at := tabAfter(text, line); {
	case at > 0 && (strings.Contains(message, "tab") || badStart):
		line, message = at, message+": indent with spaces"
	case badStart: // '@', '`' or '%'
		message += ": put the value in quotes"
	}
	return line + d.offset, errors.New("invalid YAML: " + message)
}

// tabAfter returns the first line, from line from on, that is indented with a tab, 0 without one. The library
// reports the line where the current construct began.
func tabAfter(text []byte, from int) int {
	number := 0
	for line := range bytes.Lines(text) {
		number++
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if number >= from && bytes.IndexByte(indent, '\t') >= 0 {
			return number
		}
	}
	return 0
}

// validate reports the violations found by Validate, with their paths in the file. Violations of unreadable fields are
// left out, as they are reported already.
func (d *decoder) validate(e *entry) {
	joined, ok := e.Object.Validate().(interface{ Unwrap() []error })
	if !ok {
		return
	}
	unread := d.unread()
	for _, err := range joined.Unwrap() {
		line := d.place.Line
		if f, ok := errors.AsType[*mesh.FieldError](err); ok {
			switch f.Field {
			case "name":
				f.Field = e.name.path
			case "mesh":
				f.Field = e.mesh.path
			default:
				f.Field = d.inFile(f.Field)
			}
			d.asWritten(f)
			line = d.lineOf(f.Field)
			if slices.ContainsFunc(unread, func(path string) bool { return within(path, f.Field) || within(f.Field, path) }) ||
				d.maybeStrange(f.Field) {
				continue
			}
		}
		d.report(line, Error, err)
	}
}

// asWritten sets the value of a field to its text in the file, since numbers and durations print differently.
func (d *decoder) asWritten(f *mesh.FieldError) {
	at, ok := d.fields[f.Field]
	if !ok || !isShown(f.Field) {
		return
	}
	if _, err := mesh.ParseDuration(at.value.Value); err == nil || at.value.ShortTag() == "!!int" {
		f.Value = valueText(at.value)
	}
}

// inFile returns the path in the file of a field of the spec, or of a label.
func (d *decoder) inFile(field string) string {
	if within(field, "labels") {
		return d.labelsAt + field
	}
	return d.root + field
}

// unread returns the fields that already have an Error, and those that may only be missing because of a misspelled one.
func (d *decoder) unread() []string {
	paths := slices.Clone(d.replaced)
	for _, p := range d.problems {
		if f, ok := errors.AsType[*mesh.FieldError](p.Err); ok && p.Severity == Error {
			paths = append(paths, f.Field)
		}
	}
	return paths
}

// within reports whether path is outer itself or a field below it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// lineOf returns the line of a field, or of the nearest enclosing field.
func (d *decoder) lineOf(path string) int {
	for path != "" {
		if f, ok := d.fields[path]; ok {
			return f.line
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return d.place.Line
}

// warn reports deprecated fields and fields without effect.
func (d *decoder) warn(o mesh.Object) {
	warner, ok := o.(mesh.Warner)
	if !ok {
		return
	}
	for _, w := range warner.Warnings() {
		w.Field = d.inFile(w.Field)
		d.report(d.lineOf(w.Field), Warning, w)
	}
}
