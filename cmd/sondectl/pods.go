package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// podPath returns the path of the pod or pod template in an object of that kind; false if the kind has none.
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

// pod is a pod or pod template in a document.
type pod struct {
	place string // "web.yaml, document 2, Deployment web"
	json  []byte
	// workload has the pod template, nil for a Pod.
	workload jsonObject
	// replace replaces it in the document.
	replace func(jsonObject)
}

// findPods decodes a document, and returns the object and the pods in it. Replacing a pod changes the object.
func findPods(m manifest) (jsonObject, []pod, error) {
	o, err := decodeObject(m.json)
	if err != nil {
		return nil, nil, withPlace(m.place, err)
	}
	pods, err := podsIn(m.place, o)
	return o, pods, err
}

// podsIn returns the pods in an object, or in the items of a List.
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
	p := pod{place: place, json: body}
	if len(path) == 0 {
		p.replace = func(with jsonObject) {
			clear(o)
			maps.Copy(o, with)
		}
	} else {
		p.workload = o
		p.replace = func(with jsonObject) { parent[path[len(path)-1]] = with }
	}
	return []pod{p}, nil
}

// misplacedSwitch returns the label or annotation of a workload that disables injection, with its value, "" if there is none. It belongs to
// the pod template: the webhook sees pods alone.
func (p pod) misplacedSwitch(keys []string) string {
	metadata, _ := p.workload["metadata"].(jsonObject)
	for _, field := range []string{"labels", "annotations"} {
		values, _ := metadata[field].(jsonObject)
		for _, key := range keys {
			value, _ := values[key].(string)
			if on, err := mesh.ParseSwitch(value); err == nil && !on {
				return fmt.Sprintf("metadata.%s[%q]: %q", field, key, value)
			}
		}
	}
	return ""
}

// mayHavePods reports whether a list of that kind may have pods; "" is the kind of v1 List, which has items of any kind.
func mayHavePods(apiVersion, kind string) bool {
	_, known := podPath(apiVersion, kind)
	return known || apiVersion == "v1" && kind == ""
}

// podsOfList returns the pods in the items of a List, or of a list such as PodList, whose items may have no kind.
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
