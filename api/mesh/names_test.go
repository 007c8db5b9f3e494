package mesh_test

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestObjectOf(t *testing.T) {
	tests := map[string]struct {
		dataplane, namespace, name string
		ok                         bool
	}{
		"a pod":                {"web-1.shop", "shop", "web-1", true},
		"a pod with dots":      {"web.v1.shop", "shop", "web.v1", true},
		"no object's":          {dataplane: "web-1"},
		"a name of no letters": {dataplane: ".shop"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			namespace, object, ok := mesh.ObjectOf(tc.dataplane)
			if namespace != tc.namespace || object != tc.name || ok != tc.ok {
				t.Errorf("ObjectOf(%q) = %q, %q, %t, want %q, %q, %t", tc.dataplane, namespace, object, ok, tc.namespace, tc.name, tc.ok)
			}
			if ok && mesh.ObjectDataplane(namespace, object) != tc.dataplane {
				t.Errorf("ObjectDataplane(%q, %q) = %q, want %q", namespace, object, mesh.ObjectDataplane(namespace, object), tc.dataplane)
			}
		})
	}
}
