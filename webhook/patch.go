package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// JSON pointers to lists in a pod.
const (
	pathInitContainers = "/spec/initContainers"
	pathContainers     = "/spec/containers"
	pathVolumes        = "/spec/volumes"
)

// patch is a JSON patch (RFC 6902) with the injection's changes. It names single fields and elements of lists, so the
// document keeps all others, including unknown ones.
type patch []operation

type operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"` // no omitempty: an empty string is a value
}

// add sets a field of an object, existing or not, or inserts an element into a list.
func (p *patch) add(path string, value any) {
	*p = append(*p, operation{Op: "add", Path: path, Value: value})
}

// replace replaces an element of a list.
func (p *patch) replace(path string, value any) {
	*p = append(*p, operation{Op: "replace", Path: path, Value: value})
}

// remove removes an existing field.
func (p *patch) remove(path string) { *p = append(*p, operation{Op: "remove", Path: path}) }

// move moves an element of a list.
func (p *patch) move(from, path string) {
	*p = append(*p, operation{Op: "move", From: from, Path: path})
}

// insert inserts elements into a list of length elements, at an index, or at the end for "-".
func insert[T any](p *patch, list string, length int, index string, elements ...T) {
	if length == 0 { // the list may be missing
		p.add(list, elements)
		return
	}
	if index != "-" {
		slices.Reverse(elements) // reverse order: each is inserted before the previous one
	}
	for _, e := range elements {
		p.add(list+"/"+index, e)
	}
}

// set sets keys of a map. before is the map in the document.
func (p *patch) set(path string, before, values map[string]string) {
	if before == nil && len(values) > 0 {
		p.add(path, values)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		p.add(path+"/"+pointerEscapes.Replace(key), values[key])
	}
}

// has reports whether the patch already sets a path.
func (p patch) has(path string) bool {
	return slices.ContainsFunc(p, func(o operation) bool { return o.Path == path })
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func (p patch) encode() ([]byte, error) {
	text, err := json.Marshal([]operation(p))
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return text, nil
}

// apply applies the changes to a document.
func (p patch) apply(document []byte) ([]byte, error) {
	text, err := p.encode()
	if err != nil {
		return nil, err
	}
	decoded, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	patched, err := decoded.Apply(document)
	if err != nil {
		return nil, fmt.Errorf("apply patch: %w", err)
	}
	return patched, nil
}
