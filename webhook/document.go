package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"
)

// InjectJSON is Inject for a pod, or a pod template, as a JSON document. It applies the changes of Inject to the document,
// so that fields that our types do not have stay, and unchanged values stay as they are written.
func InjectJSON(document []byte, o Options) ([]byte, []string, error) {
	pod, err := DecodePod(document)
	if err != nil {
		return nil, nil, err
	}
	injected, warnings, err := Inject(pod, o)
	if err != nil {
		return nil, warnings, err
	}
	values := make([]any, 3)
	for i, v := range []any{json.RawMessage(document), pod, injected} {
		if values[i], err = toGeneric(v); err != nil {
			return nil, nil, err
		}
	}
	patched, err := json.Marshal(merge(values[0], values[1], values[2]))
	return patched, warnings, err
}

// DecodePod decodes a pod, or a pod template, from JSON. As for the API server, the case of keys matters.
func DecodePod(document []byte) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := kjson.Unmarshal(document, pod); err != nil {
		return nil, fmt.Errorf("decode pod: %w", err)
	}
	return pod, nil
}

// toGeneric returns v as maps, lists and scalars. Numbers stay as they are written.
func toGeneric(v any) (value any, err error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode pod: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decode pod: %w", err)
	}
	return value, nil
}

// merge applies the difference between before, which was decoded from document, and after to document.
func merge(document, before, after any) any {
	if reflect.DeepEqual(before, after) {
		return document
	}
	switch after := after.(type) {
	case map[string]any:
		if before, ok := before.(map[string]any); ok {
			d, _ := document.(map[string]any) // empty if it is absent or null
			return mergeObject(d, before, after)
		}
	case []any:
		before, _ := before.([]any)
		d, _ := document.([]any)
		if hasNames(before) && hasNames(after) {
			return mergeList(d, before, after)
		}
		return mergeEqual(d, before, after)
	}
	return after
}

func mergeObject(document, before, after map[string]any) map[string]any {
	if document == nil {
		document = map[string]any{}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			delete(document, key)
		}
	}
	for key, value := range after {
		if old, ok := before[key]; !ok || !reflect.DeepEqual(old, value) {
			document[key] = merge(document[key], old, value)
		}
	}
	return document
}

// mergeList merges lists whose elements have unique names, such as containers and volumes. document and before have the
// same elements in the same order.
func mergeList(document, before, after []any) []any {
	index := map[string]int{}
	for i, element := range before {
		index[nameOf(element)] = i
	}
	merged := make([]any, len(after))
	for i, element := range after {
		old, ok := index[nameOf(element)]
		if ok && old < len(document) {
			merged[i] = merge(document[old], before[old], element)
		} else {
			merged[i] = element
		}
	}
	return merged
}

// mergeEqual merges lists whose elements have no unique names: it takes unchanged elements from document.
func mergeEqual(document, before, after []any) []any {
	merged := slices.Clone(after)
	from := 0
	for i, element := range after {
		for j := from; j < min(len(before), len(document)); j++ {
			if reflect.DeepEqual(before[j], element) {
				merged[i], from = document[j], j+1
				break
			}
		}
	}
	return merged
}

// hasNames reports whether all elements are objects with unique names.
func hasNames(list []any) bool {
	seen := map[string]bool{}
	for _, element := range list {
		name := nameOf(element)
		if name == "" || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func nameOf(element any) string {
	object, _ := element.(map[string]any)
	name, _ := object["name"].(string)
	return name
}
