package mesh

import (
	"slices"
	"strings"
)

// CheckMeshOf returns why pods and Dataplanes in a namespace with these annotations must not join a mesh, nil if they
// may. Without AnnotationMeshes they may join any mesh, with an invalid value none.
func CheckMeshOf(namespace string, annotations map[string]string, mesh string) error {
	value, limited := annotations[AnnotationMeshes]
	if !limited {
		return nil
	}
	refuse := func(allowed string) error {
		return &FieldError{Field: "namespace " + namespace + ": " + tagField("metadata.annotations", AnnotationMeshes),
			Value: value, Allowed: allowed}
	}
	meshes := strings.Split(value, ",")
	for i, name := range meshes {
		if meshes[i] = strings.TrimSpace(name); !isDNSLabel(meshes[i]) {
			return refuse("must be names of meshes with commas between them, of which each " +
				strings.TrimPrefix(allowedLabel, "must be "))
		}
	}
	if slices.Contains(meshes, mesh) {
		return nil
	}
	return &FieldError{
		Field: LabelMesh, Value: mesh,
		Allowed: "must be " + strings.Join(meshes, " or ") + ": the annotation " + AnnotationMeshes + " of namespace " +
			namespace + " allows no other",
	}
}
