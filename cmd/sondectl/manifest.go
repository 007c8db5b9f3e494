package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxManifests is far more than anybody applies at once.
const maxManifests = 64 << 20

// manifest is one document of a file.
type manifest struct {
	place string // "web.yaml, document 2"
	text  []byte // as it came, without the --- before it
	json  []byte // nil for a document without content
}

// readManifests reads a file, or standard input where path is "-": documents of YAML, each of which may be a stream of JSON.
// The first error has all that is wrong in documents, the second is one of reading.
func readManifests(path string, stdin io.Reader) (all []manifest, wrong []error, err error) {
	data, err := readFile(path, stdin)
	if err != nil {
		return nil, nil, err
	}
	if !utf8.Valid(data) {
		return nil, nil, fmt.Errorf("%s: must be UTF-8", path)
	}
	for _, text := range splitYAML(data) {
		for _, part := range splitJSON(text) {
			all = append(all, manifest{place: fmt.Sprintf("%s, document %d", path, len(all)+1), text: part})
		}
	}
	for i := range all {
		m := &all[i]
		if m.json, err = toJSON(m.text); err != nil {
			wrong = append(wrong, withPlace(m.place, err))
		}
	}
	return all, wrong, nil
}

func readFile(path string, stdin io.Reader) (data []byte, err error) {
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		stdin = file
	}
	if data, err = io.ReadAll(io.LimitReader(stdin, maxManifests+1)); err != nil {
		return nil, err // it names the file
	}
	if len(data) > maxManifests {
		return nil, fmt.Errorf("read %s: it has more than %d bytes", path, maxManifests)
	}
	return data, nil
}

// splitYAML cuts at lines that begin with --- or ..., which are markers wherever they stand: YAML forbids them within a
// document. What follows a --- on its line belongs to the next document. Byte order marks go: files that are put behind
// one another have one each.
func splitYAML(data []byte) (texts [][]byte) {
	var text []byte
	flush := func() {
		if len(bytes.TrimSpace(text)) > 0 {
			texts = append(texts, text)
		}
	}
	for line := range bytes.Lines(data) {
		line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		if rest, ok := marker(line, "---"); ok {
			flush()
			text, line = nil, rest
		} else if rest, ok := marker(line, "..."); ok {
			flush()
			text, line = nil, rest
		}
		text = append(text, line...)
	}
	flush()
	return texts
}

// marker returns what follows a marker on its line.
func marker(line []byte, mark string) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(mark))
	if !ok || len(rest) > 0 && !strings.ContainsRune(" \t\r\n", rune(rest[0])) {
		return nil, false
	}
	return bytes.TrimLeft(rest, " \t\r\n"), true
}

// splitJSON cuts a text that is a stream of JSON objects. Everything else is one document.
func splitJSON(text []byte) [][]byte {
	if !isJSON(text) {
		return [][]byte{text}
	}
	var parts [][]byte
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var part json.RawMessage
		switch err := decoder.Decode(&part); {
		case errors.Is(err, io.EOF):
			return parts
		case err != nil: // YAML may begin with a brace, too
			return [][]byte{text}
		}
		parts = append(parts, part)
	}
}

func isJSON(text []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) }

// toJSON returns nil for a document without content. A key that comes twice is an error, since one value would be lost.
func toJSON(text []byte) ([]byte, error) {
	if !hasContent(text) {
		return nil, nil
	}
	if isJSON(text) && json.Valid(text) {
		var object map[string]any
		duplicates, err := sigsjson.UnmarshalStrict(text, &object)
		return text, errors.Join(append(duplicates, err)...)
	}
	body, err := yaml.YAMLToJSONStrict(text)
	if err != nil && uniqueKeys(text) {
		body, err = yaml.YAMLToJSON(text) // as kubectl does
	}
	switch {
	case err != nil:
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: unmarshal errors:\n"))
	case !isSingleDocument(text):
		return nil, errors.New("what follows the first object is no document: a line with --- is missing before it, or it is broken")
	case string(body) == "null":
		return nil, nil
	}
	return body, nil
}

// isSingleDocument says whether nothing follows the first document of a text. To decode a text is to stop there.
func isSingleDocument(text []byte) bool {
	var value yamlv3.Node
	decoder := yamlv3.NewDecoder(bytes.NewReader(text))
	return decoder.Decode(&value) == nil && errors.Is(decoder.Decode(&value), io.EOF)
}

// uniqueKeys says whether a text is YAML without a key that comes twice. The strict decoder takes a key for such a one that
// only overrides another, of a mapping merged by <<.
func uniqueKeys(text []byte) bool {
	var value any
	return bytes.Contains(text, []byte("<<")) && yamlv3.Unmarshal(text, &value) == nil
}

// hasContent says whether a text is more than comments and directives.
func hasContent(text []byte) bool {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return true
		}
	}
	return false
}

// jsonObject is a document as maps, lists and scalars, numbers as they are written.
type jsonObject = map[string]any

func decodeObject(body []byte) (jsonObject, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var o jsonObject
	if err := decoder.Decode(&o); err != nil {
		return nil, errors.New("must be an object of Kubernetes")
	}
	return o, nil
}

// isYAML says whether JSON may stand among documents of YAML as it came. Some escapes and control characters may not.
func isYAML(m manifest) bool {
	var asJSON, asYAML any
	body, err := yaml.YAMLToJSON(m.text)
	return err == nil && json.Unmarshal(m.json, &asJSON) == nil && json.Unmarshal(body, &asYAML) == nil &&
		reflect.DeepEqual(asJSON, asYAML)
}

// encodeYAML writes an object.
func encodeYAML(place string, o jsonObject) ([]byte, error) {
	body, err := json.Marshal(o)
	if err == nil {
		body, err = yaml.JSONToYAML(escapeSpecial(body))
	}
	if err != nil {
		return nil, withPlace(place, err)
	}
	return body, nil
}

// escapeSpecial escapes what JSON may have in strings and YAML may not, or takes for the end of a line.
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

// podPath returns where an object of a kind has its pod, or the template of one; false for kinds that have none.
func podPath(apiVersion, kind string) ([]string, bool) {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		group = ""
	}
	template := []string{"spec", "template"}
	switch {
	case group == "" && kind == "Pod":
		return nil, true
	case group == "" && kind == "ReplicationController":
		return template, true
	case group == "apps" && slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"}, kind):
		return template, true
	case group == "batch" && kind == "Job":
		return template, true
	case group == "batch" && kind == "CronJob":
		return []string{"spec", "jobTemplate", "spec", "template"}, true
	}
	return nil, false
}

// pod is one that was found in a document.
type pod struct {
	place string // "web.yaml, document 2, Deployment web"
	json  []byte
	// replace puts another in its place.
	replace func(jsonObject)
}

// findPods decodes a document, and returns the pods and templates of pods in it. The object changes when they are replaced.
func findPods(m manifest) (jsonObject, []pod, error) {
	o, err := decodeObject(m.json)
	if err != nil {
		return nil, nil, withPlace(m.place, err)
	}
	pods, err := podsIn(m.place, o)
	return o, pods, err
}

// podsIn looks into an object, and into what a List has.
func podsIn(place string, o jsonObject) ([]pod, error) {
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	if kind == "" || apiVersion == "" {
		return nil, withPlace(place, errors.New("kind or apiVersion is missing"))
	}
	if of, isList := strings.CutSuffix(kind, "List"); isList && mayHavePods(apiVersion, of) {
		items, _ := o["items"].([]any)
		return podsOfList(place, apiVersion, of, items)
	}
	path, ok := podPath(apiVersion, kind)
	if !ok {
		return nil, nil
	}
	place += ", " + kind
	if metadata, _ := o["metadata"].(jsonObject); metadata != nil {
		if name, _ := metadata["name"].(string); name != "" {
			place += " " + name
		}
	}
	parent, found := o, o
	for i, key := range path {
		parent = found
		if found, ok = parent[key].(jsonObject); !ok {
			return nil, withPlace(place, fmt.Errorf("%s: must be an object", strings.Join(path[:i+1], ".")))
		}
	}
	body, err := json.Marshal(found)
	if err != nil {
		return nil, withPlace(place, err)
	}
	return []pod{{place: place, json: body, replace: func(with jsonObject) {
		if len(path) > 0 {
			parent[path[len(path)-1]] = with
			return
		}
		clear(o)
		maps.Copy(o, with)
	}}}, nil
}

// mayHavePods says whether a list of a kind is worth looking into; "" is the kind of List, which has any.
func mayHavePods(apiVersion, kind string) bool {
	_, known := podPath(apiVersion, kind)
	return known || apiVersion == "v1" && kind == ""
}

// podsOfList looks into a List, or one of a kind such as PodList, whose items may leave out what they are.
func podsOfList(place, apiVersion, kind string, items []any) (all []pod, err error) {
	for i, item := range items {
		place := fmt.Sprintf("%s, item %d", place, i+1)
		o, ok := item.(jsonObject)
		if !ok {
			return nil, withPlace(place, errors.New("must be an object of Kubernetes"))
		}
		if _, has := o["kind"]; !has && kind != "" {
			o["apiVersion"], o["kind"] = apiVersion, kind
		}
		pods, err := podsIn(place, o)
		if err != nil {
			return nil, err
		}
		all = append(all, pods...)
	}
	return all, nil
}
