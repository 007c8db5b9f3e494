package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// podPath returns the path of the pod or pod template in an object of a kind; false if the kind has none.
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

// Pod is a pod or pod template in a document.
type Pod struct {
	Place string // "web.yaml, document 2, Deployment web"
	JSON  []byte
	// workload is the object with the pod template, nil for a Pod.
	workload Object
	// Replace replaces the pod in the document.
	Replace func(Object)
}

// FindPods decodes a document, and returns the object and its pods. Pod.Replace changes the object.
func FindPods(m Document) (Object, []Pod, error) {
	o, err := DecodeObject(m.JSON)
	if err != nil {
		return nil, nil, WithPlace(m.Place, err)
	}
	pods, err := PodsIn(m.Place, o)
	return o, pods, err
}

// follow returns the object at a path, and its parent.
func follow(o Object, path []string) (parent, found Object, err error) {
	parent, found = o, o
	for i, key := range path {
		parent = found
		if err := misspelt(parent, strings.Join(path[:i], "."), key); err != nil {
			return nil, nil, err
		}
		var ok bool
		if found, ok = parent[key].(Object); !ok {
			return nil, nil, fmt.Errorf("%s: must be an object", strings.Join(path[:i+1], "."))
		}
	}
	return parent, found, nil
}

// PodsIn returns the pods in an object, or in the items of a List.
func PodsIn(place string, o Object) ([]Pod, error) {
	apiVersion, _ := o["apiVersion"].(string)
	kind, _ := o["kind"].(string)
	if kind == "" || apiVersion == "" {
		for _, key := range []string{"kind", "apiVersion"} {
			if err := misspelt(o, "", key); err != nil {
				return nil, WithPlace(place, err)
			}
		}
		return nil, WithPlace(place, errors.New("kind or apiVersion is missing"))
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
	if metadata, _ := o["metadata"].(Object); metadata != nil {
		if name, _ := metadata["name"].(string); name != "" {
			place += " " + name
		}
	}
	parent, found, err := follow(o, path)
	if err != nil {
		return nil, WithPlace(place, err)
	}
	if err := misspeltContainers(found, strings.Join(path, ".")); err != nil {
		return nil, WithPlace(place, err)
	}
	body, err := json.Marshal(found)
	if err != nil {
		return nil, WithPlace(place, err)
	}
	p := Pod{Place: place, JSON: body}
	if len(path) == 0 {
		p.Replace = func(with Object) {
			clear(o)
			maps.Copy(o, with)
		}
	} else {
		p.workload = o
		p.Replace = func(with Object) { parent[path[len(path)-1]] = with }
	}
	return []Pod{p}, nil
}

// misspelt returns an error if the object at a path lacks a required field but has one with a similar name.
func misspelt(o Object, path, lacks string) error {
	if _, ok := o[lacks]; ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if near, _ := mesh.Nearest(name, []string{lacks, "initContainers", "ephemeralContainers"}); near == lacks {
			return &mesh.FieldError{Field: strings.TrimPrefix(path+"."+name, "."), Allowed: mesh.UnknownField(name, []string{lacks})}
		}
	}
	return nil
}

// misspeltContainers is misspelt for the required fields of pods.
func misspeltContainers(pod Object, path string) error {
	if err := misspelt(pod, path, "spec"); err != nil {
		return err
	}
	spec, _ := pod["spec"].(Object)
	return misspelt(spec, strings.TrimPrefix(path+".spec", "."), "containers")
}

// MisplacedSwitch returns a workload's label or annotation that disables injection, with its value, "" without one. It
// belongs on the pod template, since the webhook only gets pods.
func (p Pod) MisplacedSwitch(keys []string) string {
	metadata, _ := p.workload["metadata"].(Object)
	for _, field := range []string{"labels", "annotations"} {
		values, _ := metadata[field].(Object)
		for _, key := range keys {
			value, _ := values[key].(string)
			if on, err := mesh.ParseSwitch(value); err == nil && !on {
				return fmt.Sprintf("metadata.%s[%q]: %q", field, key, value)
			}
		}
	}
	return ""
}

// mayHavePods reports whether lists of this kind may contain pods. "" is the kind of v1 List, with items of any kind.
func mayHavePods(apiVersion, kind string) bool {
	_, ok := podPath(apiVersion, kind)
	return ok || apiVersion == "v1" && kind == ""
}

// podsOfList returns the pods in the items of a List, or of a list such as PodList, whose items may have no kind.
func podsOfList(place, apiVersion, kind string, items []any) (all []Pod, err error) {
	for i, item := range items {
		place := fmt.Sprintf("%s, item %d", place, i+1)
		o, ok := item.(Object)
		if !ok {
			return nil, WithPlace(place, errors.New("must be an object of Kubernetes"))
		}
		if _, ok := o["kind"]; !ok && kind != "" {
			o["apiVersion"], o["kind"] = apiVersion, kind
		}
		pods, err := PodsIn(place, o)
		if err != nil {
			return nil, err
		}
		all = append(all, pods...)
	}
	return all, nil
}
