package check

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// definitions says whether the CustomResourceDefinitions are those of this release.
func definitions(f *facts) []Line {
	const name = "CustomResourceDefinitions"
	if f.definitions.err != nil {
		return []Line{unread(name, f.definitions.err)}
	}
	ours, err := ourDefinitions()
	if err != nil {
		return []Line{{Name: name, Level: Fail, Text: err.Error(), Do: "get another build of sondectl"}}
	}
	there := map[string]*unstructured.Unstructured{}
	for i := range f.definitions.is {
		there[f.definitions.is[i].GetName()] = &f.definitions.is[i]
	}
	var missing, differ, notServed []string
	for i := range ours {
		is := there[ours[i].GetName()]
		switch {
		case is == nil:
			missing = append(missing, ours[i].GetName())
		case !reflect.DeepEqual(schemasOf(is), schemasOf(&ours[i])):
			differ = append(differ, is.GetName())
		case !established(is):
			notServed = append(notServed, is.GetName())
		}
	}
	const apply = "install or upgrade the chart of the release that sondectl is of, which brings them to its version"
	var lines []Line
	switch {
	case len(differ) > 0:
		lines = append(lines, Line{Name: name, Level: Warn, Text: "those of another release are there: " + strings.Join(differ, ", "), Do: apply})
	case len(notServed) > 0:
		lines = append(lines, Line{Name: name, Level: Fail, Text: "not served: " + strings.Join(notServed, ", "), Do: "kubectl describe crd says in its conditions why"})
	}
	if f.installed && len(missing) > 0 {
		lines = append(lines, Line{Name: name, Level: Fail, Text: "missing: " + strings.Join(missing, ", "), Do: apply})
	}
	switch {
	case len(lines) > 0:
		return lines
	case len(missing) == len(ours):
		return []Line{{Name: name, Level: OK, Text: "none is there yet: the chart has them"}}
	}
	return []Line{{Name: name, Level: OK, Text: printer.Plural(len(ours)-len(missing), "definition") + " of this release"}}
}

// ourDefinitions returns the definitions of this release.
func ourDefinitions() ([]unstructured.Unstructured, error) {
	files, err := crds.Files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read the definitions of this build: %w", err)
	}
	all := make([]unstructured.Unstructured, len(files))
	for i, file := range files {
		text, err := crds.Files.ReadFile(file.Name())
		if err == nil {
			text, err = yaml.YAMLToJSON(text)
		}
		if err == nil {
			err = all[i].UnmarshalJSON(text)
		}
		if err != nil {
			return nil, fmt.Errorf("decode definition %s of this build: %w", file.Name(), err)
		}
	}
	return all, nil
}

// schemasOf returns what an API server takes of objects, by version.
func schemasOf(definition *unstructured.Unstructured) map[string]any {
	schemas := map[string]any{}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		if v, ok := v.(map[string]any); ok {
			schemas[fmt.Sprint(v["name"])] = []any{v["schema"], v["subresources"]}
		}
	}
	return schemas
}

// established reports whether an API server serves a definition.
func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}
