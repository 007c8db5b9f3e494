package mesh_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestCheckMeshOf(t *testing.T) {
	const readable = `namespace shop: metadata.annotations["sonde.dev/meshes"]: `
	tests := map[string]struct {
		annotations map[string]string
		mesh        string
		want        string // "" for allowed
	}{
		"no annotation":   {map[string]string{"other": "x"}, "blue", ""},
		"allowed":         {map[string]string{"sonde.dev/meshes": "blue"}, "blue", ""},
		"one of several":  {map[string]string{"sonde.dev/meshes": "default, blue"}, "blue", ""},
		"another":         {map[string]string{"sonde.dev/meshes": "default,green"}, "blue", `kuma.io/mesh: "blue": must be default or green: the annotation sonde.dev/meshes of namespace shop allows no other`},
		"a part of one":   {map[string]string{"sonde.dev/meshes": "blue-green"}, "blue", "must be blue-green"},
		"empty":           {map[string]string{"sonde.dev/meshes": ""}, "blue", readable + "must be names of meshes"},
		"an empty name":   {map[string]string{"sonde.dev/meshes": "blue,"}, "blue", readable + `"blue,": must be names of meshes`},
		"no mesh's name":  {map[string]string{"sonde.dev/meshes": "blue, Green"}, "blue", readable + `"blue, Green": must be names of meshes`},
		"another divider": {map[string]string{"sonde.dev/meshes": "blue green"}, "blue", "must be names of meshes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := mesh.CheckMeshOf("shop", tc.annotations, tc.mesh)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}
