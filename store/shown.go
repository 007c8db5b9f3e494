package store

import (
	"reflect"
	"regexp"
	"strings"
	"sync"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// isShown reports whether problems may show the value at a path. Only values of known fields are shown: any other may
// be secret, such as a CA key of Kuma's, or the data of its Secret.
func isShown(path string) bool {
	field := keyPattern.ReplaceAllString(path, "[]")
	for _, outer := range []string{"spec.", "metadata."} {
		field = strings.TrimPrefix(field, outer)
	}
	return modelFields()[field] && !mesh.MayBeSecret(path)
}

var keyPattern = regexp.MustCompile(`\[(?:\d+|"(?:[^"\\]|\\.)*")\]`)

// modelFields returns the paths of the fields of all kinds, with [] for any index or key.
var modelFields = sync.OnceValue(func() map[string]bool {
	fields := map[string]bool{}
	for _, name := range []string{"", "type", "apiVersion", "kind", "name", "mesh", "metadata", "spec"} {
		fields[name] = true
	}
	addFields(fields, "labels", reflect.TypeFor[map[string]string]())
	for _, spec := range []reflect.Type{
		reflect.TypeFor[mesh.MeshSpec](), reflect.TypeFor[mesh.DataplaneSpec](), reflect.TypeFor[mesh.ServiceSpec](),
		reflect.TypeFor[mesh.MeshServiceSpec](),
	} {
		addFields(fields, "", spec)
	}
	return fields
})

func addFields(to map[string]bool, path string, t reflect.Type) {
	to[path] = true
	switch t.Kind() {
	case reflect.Pointer:
		addFields(to, path, t.Elem())
	case reflect.Slice, reflect.Map:
		addFields(to, path+"[]", t.Elem())
	case reflect.Struct:
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			addFields(to, strings.TrimPrefix(path+"."+name, "."), field.Type)
		}
	}
}
