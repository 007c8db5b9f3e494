package webhook

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
)

// JSON pointers of lists in a pod.
const (
	pathInitContainers = "/spec/initContainers"
	pathContainers     = "/spec/containers"
	pathVolumes        = "/spec/volumes"
)

// patch is a JSON patch (RFC 6902): what the injection changes in a pod. It names single fields and elements of lists, so that whatever
// else the document has stays, known to our types or not.
type patch []operation

type operation struct {
	Op    string `json:"op"`
	From  string `json:"from,omitempty"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"` // an empty string is a value, too
}

// add sets a field of an object, whether it is there or not, or inserts an element into a list.
func (p *patch) add(path string, value any) {
	*p = append(*p, operation{Op: "add", Path: path, Value: value})
}

// replace replaces an element of a list.
func (p *patch) replace(path string, value any) {
	*p = append(*p, operation{Op: "replace", Path: path, Value: value})
}

// remove removes a field that is there.
func (p *patch) remove(path string) { *p = append(*p, operation{Op: "remove", Path: path}) }

// move takes an element out of a list and inserts it at another place.
func (p *patch) move(from, path string) {
	*p = append(*p, operation{Op: "move", From: from, Path: path})
}

// insert inserts elements into a list that has length elements, at an index, or at the end if it is "-".
func insert[T any](p *patch, list string, length int, index string, elements ...T) {
	if length == 0 { // perhaps there is no list
		p.add(list, elements)
		return
	}
	if index != "-" {
		slices.Reverse(elements) // each comes before the one that was inserted before it
	}
	for _, e := range elements {
		p.add(list+"/"+index, e)
	}
}

// set sets keys of a map, of which before is what the document has.
func (p *patch) set(path string, before, values map[string]string) {
	if before == nil && len(values) > 0 {
		p.add(path, values)
		return
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		p.add(path+"/"+pointerEscapes.Replace(key), values[key])
	}
}

// has reports whether something is set at a path already.
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

// apply returns a document with the changes.
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
