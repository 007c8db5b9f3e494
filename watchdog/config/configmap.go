package config

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// Import is like ReadFile, but the file may also be a ConfigMap that contains the prober's file. key selects an entry
// of its data; "" selects the only one.
func Import(path, key, namespace string, local bool) (*v1alpha1.WatchedClusterSpec, error) {
	data, err := contentOf(path)
	if err != nil {
		return nil, err
	}
	at := path
	body, err := toJSON(data)
	if err == nil && isConfigMap(body) {
		if key, data, err = dataOf(body, key); err == nil {
			at += fmt.Sprintf(", data[%q]", key)
		}
	} else if err == nil && key != "" {
		err = &mesh.FieldError{Field: "--key", Value: key, Allowed: "must only be given for a ConfigMap"}
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", at, err)
	}
	spec, err := parse(data, namespace, local, Self{})
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", at, err)
	}
	return spec, nil
}

// toJSON returns the only document of a YAML file. The YAML library would ignore other documents.
func toJSON(data []byte) ([]byte, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var one []byte
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // the error is complete
		}
		body, err := yaml.YAMLToJSONStrict(document)
		if _, ofFile := yaml.YAMLToJSONStrict(data); err != nil && ofFile != nil {
			err = ofFile // the error has line numbers of the file
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // it names the line
		}
		if string(body) == "null" {
			continue
		}
		if one != nil {
			return nil, errors.New("must be one YAML document")
		}
		one = body
	}
	if one == nil {
		return []byte("null"), nil
	}
	return one, nil
}

func isConfigMap(body []byte) bool {
	var object struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(body, &object) == nil && object.Kind == "ConfigMap"
}

// dataOf returns the file at a key of a ConfigMap's data; "" selects the only one.
func dataOf(body []byte, key string) (string, []byte, error) {
	var object struct {
		Data map[string]string `json:"data"`
	}
	if err := json.Unmarshal(body, &object); err != nil {
		return "", nil, mesh.ExplainJSON("", body, &object)
	}
	keys := slices.Sorted(maps.Keys(object.Data))
	switch {
	case len(keys) == 0:
		return "", nil, &mesh.FieldError{Field: "data", Allowed: "is missing: must contain the file of a prober"}
	case key == "" && len(keys) > 1:
		return "", nil, &mesh.FieldError{Field: "--key", Allowed: "is required: the ConfigMap has the keys " +
			strings.Join(keys, ", ")}
	case key == "":
		key = keys[0]
	}
	text, ok := object.Data[key]
	if !ok {
		return "", nil, &mesh.FieldError{Field: "--key", Value: key,
			Allowed: "must be a key of the data of the ConfigMap: " + strings.Join(keys, ", ")}
	}
	return key, []byte(text), nil
}
