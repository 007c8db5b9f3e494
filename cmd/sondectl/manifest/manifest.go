// Package manifest reads files with objects of Kubernetes, finds their pods, and defines the flags for such files.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/store"
)

// Document is one document of a file.
type Document struct {
	Place string // "web.yaml, document 2"
	Text  []byte // text without the --- before it
	JSON  []byte // nil for an empty document
}

// split splits the text of a file into YAML documents, and a document that is a stream of JSON objects into these.
// wrong has an error for each invalid document; err means that the whole text is invalid.
func split(path string, data []byte) (all []Document, wrong []error, err error) {
	if !utf8.Valid(data) {
		return nil, nil, fmt.Errorf("%s: must be UTF-8", path)
	}
	for _, part := range store.Split(data) {
		for _, text := range splitJSON(part.Content()) {
			if len(bytes.TrimSpace(text)) > 0 {
				all = append(all, Document{Place: fmt.Sprintf("%s, document %d", path, len(all)+1), Text: text})
			}
		}
	}
	for i := range all {
		m := &all[i]
		if m.JSON, err = toJSON(m.Text); err != nil {
			wrong = append(wrong, WithPlace(m.Place, err))
		}
	}
	return all, wrong, nil
}

// splitJSON splits a stream of JSON objects. Any other text is one document.
func splitJSON(text []byte) [][]byte {
	if !IsJSON(text) {
		return [][]byte{text}
	}
	var parts [][]byte
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var part json.RawMessage
		switch err := decoder.Decode(&part); {
		case errors.Is(err, io.EOF):
			return parts
		case err != nil: // the text may be YAML, which may also begin with a brace
			return [][]byte{text}
		}
		parts = append(parts, part)
	}
}

// IsJSON reports whether a text is JSON, not YAML, by its first character.
func IsJSON(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

// toJSON converts a document to JSON, nil for an empty document. A duplicate key is an error, since one value would be
// lost.
func toJSON(text []byte) ([]byte, error) {
	if !store.HasContent(text) {
		return nil, nil
	}
	if IsJSON(text) && json.Valid(text) {
		var object map[string]any
		duplicates, err := sigsjson.UnmarshalStrict(text, &object)
		if err != nil {
			err = mesh.ExplainJSON("", text, &object)
		}
		return text, errors.Join(append(duplicates, err)...)
	}
	body, err := yaml.YAMLToJSONStrict(text)
	if err != nil && uniqueKeys(text) {
		body, err = yaml.YAMLToJSON(text) // as in kubectl
	}
	switch {
	case err != nil:
		return nil, explainYAML(text, err)
	case !isSingleDocument(text):
		return nil, errors.New("invalid document after the first object: separate documents with a line ---")
	case string(body) == "null":
		return nil, nil
	}
	return body, nil
}

// explainYAML returns why a text cannot be converted to JSON. err is the library's error, which has some values in Go
// syntax.
func explainYAML(text []byte, err error) error {
	var document yamlv3.Node
	if yamlv3.Unmarshal(text, &document) == nil {
		if wrong := notInJSON(&document); wrong != nil {
			return wrong
		}
	}
	return errors.New(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n"))
}

// notInJSON returns an error for the first key or number that JSON cannot represent.
func notInJSON(n *yamlv3.Node) error {
	var number float64
	if n.Kind == yamlv3.ScalarNode && n.ShortTag() == "!!float" && n.Decode(&number) == nil && (math.IsNaN(number) || math.IsInf(number, 0)) {
		return fmt.Errorf("line %d: %q: must be a number that JSON can represent", n.Line, n.Value)
	}
	for i, child := range n.Content {
		if n.Kind == yamlv3.MappingNode && i%2 == 0 && child.Kind != yamlv3.ScalarNode {
			return fmt.Errorf("line %d: must have strings as keys", child.Line)
		}
		if err := notInJSON(child); err != nil {
			return err
		}
	}
	return nil
}

// isSingleDocument reports whether a text has only one document. A decoder would ignore others.
func isSingleDocument(text []byte) bool {
	var value yamlv3.Node
	decoder := yamlv3.NewDecoder(bytes.NewReader(text))
	return decoder.Decode(&value) == nil && errors.Is(decoder.Decode(&value), io.EOF)
}

// uniqueKeys reports whether a YAML text has no duplicate keys. The strict decoder would also reject keys that override
// merged ones (<<).
func uniqueKeys(text []byte) bool {
	var value any
	return bytes.Contains(text, []byte("<<")) && yamlv3.Unmarshal(text, &value) == nil
}

// Object is an object of maps, lists and scalars, with json.Number for numbers.
type Object = map[string]any

// DecodeObject decodes an object from JSON.
func DecodeObject(body []byte) (Object, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var o Object
	if err := decoder.Decode(&o); err != nil {
		return nil, errors.New("must be an object of Kubernetes")
	}
	return o, nil
}

// IsYAML reports whether JSON text has the same meaning in YAML. Some escapes and control characters have not.
func IsYAML(m Document) bool {
	var asJSON, asYAML any
	body, err := yaml.YAMLToJSON(m.Text)
	return err == nil && json.Unmarshal(m.JSON, &asJSON) == nil && json.Unmarshal(body, &asYAML) == nil &&
		reflect.DeepEqual(asJSON, asYAML)
}

// EncodeYAML encodes an object as YAML.
func EncodeYAML(place string, o Object) ([]byte, error) {
	body, err := json.Marshal(o)
	if err == nil {
		body, err = yaml.JSONToYAML(escapeSpecial(body))
	}
	if err != nil {
		return nil, WithPlace(place, err)
	}
	return body, nil
}

// escapeSpecial escapes characters that JSON allows in strings but YAML rejects, or treats as line breaks.
func escapeSpecial(body []byte) []byte {
	var b bytes.Buffer
	for _, r := range string(body) {
		switch {
		case r >= 0x7f && r <= 0xa0, r == '\u2028', r == '\u2029', r == '\uFEFF', r == '\uFFFE', r == '\uFFFF':
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}
