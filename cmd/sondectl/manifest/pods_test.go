package manifest

import (
	"encoding/json"
	"testing"

	"sigs.k8s.io/yaml"
)

// The error names the misspelt field, not the missing one.
func TestMisspeltFields(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"kind":            {"{apiVersion: v1, knd: Pod}", "web.yaml: error: knd: is an unknown field: did you mean kind?"},
		"template":        {"{apiVersion: apps/v1, kind: Deployment, spec: {templat: {}}}", "web.yaml, Deployment: error: spec.templat: is an unknown field: did you mean template?"},
		"spec":            {"{apiVersion: v1, kind: Pod, spce: {}}", "web.yaml, Pod: error: spce: is an unknown field: did you mean spec?"},
		"containers":      {"{apiVersion: v1, kind: Pod, spec: {contaners: []}}", "web.yaml, Pod: error: spec.contaners: is an unknown field: did you mean containers?"},
		"of a template":   {"{apiVersion: apps/v1, kind: DaemonSet, spec: {template: {spec: {Containers: []}}}}", "web.yaml, DaemonSet: error: spec.template.spec.Containers: is an unknown field: write containers"},
		"other known one": {"{apiVersion: v1, kind: Pod, spec: {initContainers: []}}", ""},
		"nothing like it": {"{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 1}}", "web.yaml, Deployment: error: spec.template: must be an object"},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := yaml.YAMLToJSON([]byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			var o Object
			if err := json.Unmarshal(body, &o); err != nil {
				t.Fatal(err)
			}
			if _, err = PodsIn("web.yaml", o); (err == nil) != (tc.want == "") || err != nil && err.Error() != tc.want {
				t.Errorf("PodsIn() = %v, want %s", err, tc.want)
			}
		})
	}
}
