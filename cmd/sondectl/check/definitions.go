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

// definitions compares the cluster's CustomResourceDefinitions with this release.
var definitions = check{"CustomResourceDefinitions", (*facts).needsDefinitions, func(f *facts, l *lines) {
	ours, err := ourDefinitions()
	if err != nil {
		l.fail(err.Error(), "install another build of sondectl")
		return
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
	const apply = "install or upgrade to the chart of sondectl's release, which updates the definitions"
	switch {
	case len(differ) > 0:
		l.warn("installed by another release: "+strings.Join(differ, ", "), apply)
	case len(notServed) > 0:
		l.fail("not served: "+strings.Join(notServed, ", "), "see the conditions in kubectl describe crd")
	}
	if f.installed && len(missing) > 0 {
		l.fail("missing: "+strings.Join(missing, ", "), apply)
	}
	if len(missing) == len(ours) {
		l.ok("none installed yet: the chart installs them")
	}
	l.ok(printer.Plural(len(ours)-len(missing), "definition") + " of this release")
}}

// ourDefinitions returns this release's definitions.
func ourDefinitions() ([]unstructured.Unstructured, error) {
	files, err := crds.Files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read definitions of this build: %w", err)
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

// schemasOf returns the schemas of a definition by version.
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

// established reports whether the API server serves a definition.
func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return true
		}
	}
	return false
}
