package store

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// objectMeta lists the fields of Kubernetes' ObjectMeta, and mesh. Only name, mesh and labels are used.
var objectMeta = []string{
	"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
	"generation", "labels", "managedFields", "mesh", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink",
	"uid",
}

// object reads the object of a document. The result is complete only if the decoder has not failed.
func (d *decoder) object(top *yaml.Node) *entry {
	fields := pairs(top)
	if !d.readKind(top, fields) {
		return nil
	}
	if d.templates(top, ""); d.failed {
		return nil
	}
	spec, hasSpec := find(fields, "spec")
	metadata, hasMetadata := find(fields, "metadata")
	if hasSpec || hasMetadata {
		d.root = "spec."
	}
	var head, rest []pair
	for _, f := range fields {
		switch f.name() {
		case "type", "spec", "metadata":
		case "status": // written by a control plane, never input: files may be the output of "sondectl get"
		case "name", "mesh", "labels":
			head = append(head, f)
		default:
			rest = append(rest, f)
			if d.root != "" {
				d.unknown(f.name(), f.name(), f.name(), []string{"type", "name", "mesh", "labels", "metadata", "spec"})
			}
		}
	}
	e := &entry{Document: Document{Place: d.place}}
	m := d.meta(e, head, metadata.value)
	var into any
	switch e.Object, into = newObject(d.kind, m); {
	case hasSpec:
		d.decode(spec.value, "spec", into)
	case !hasMetadata:
		d.decode(mappingOf(rest), "", into)
	}
	return e
}

// beside returns the names of the fields at the top level, if the fields of the spec are there, too.
func (d *decoder) beside() []string {
	switch {
	case d.root != "":
		return nil
	case d.kind == mesh.KindMesh:
		return []string{"type", "name", "labels"}
	}
	return []string{"type", "name", "mesh", "labels"}
}

// newObject returns an object of that kind, and its spec.
func newObject(kind mesh.Kind, m mesh.Meta) (o mesh.Object, spec any) {
	switch kind {
	case mesh.KindMesh:
		o := &mesh.Mesh{Name: m.Name, Labels: m.Labels}
		return o, &o.Spec
	case mesh.KindDataplane:
		o := &mesh.Dataplane{Meta: m}
		return o, &o.Spec
	case mesh.KindService:
		o := &mesh.Service{Meta: m}
		return o, &o.Spec
	case mesh.KindMeshService:
		o := &mesh.MeshService{Meta: m}
		return o, &o.Spec
	}
	panic("store: a kind that is not read: " + string(kind))
}

// head are the fields at the top level, or in metadata, that are read.
type head struct {
	Name   string            `json:"name"`
	Mesh   string            `json:"mesh"`
	Labels map[string]string `json:"labels"`
}

// meta reads name, mesh and labels from the top level and from metadata, which may be nil. If both have a field,
// different values are an error.
func (d *decoder) meta(e *entry, top []pair, metadata *yaml.Node) mesh.Meta {
	m := mesh.Meta{}
	e.name, e.mesh = field{"name", d.place.Line}, field{"mesh", d.place.Line}
	d.head(e, &m, top, "")
	if metadata != nil {
		var inner []pair
		for _, p := range d.mapping(metadata, "metadata") {
			switch path := "metadata." + p.name(); {
			case p.name() == "name" || p.name() == "mesh" || p.name() == "labels":
				inner = append(inner, p)
			case !slices.Contains(objectMeta, p.name()):
				d.unknown(path, path, p.name(), objectMeta)
			}
		}
		d.head(e, &m, inner, "metadata.")
	}
	at := d.labelsAt + "labels[" + strconv.Quote(mesh.LabelMesh) + "]"
	if label, ok := m.Labels[mesh.LabelMesh]; ok && d.kind != mesh.KindMesh {
		d.same(at, label, &m.Mesh, &e.mesh)
	}
	return m
}

// head reads these fields from one of the two.
func (d *decoder) head(e *entry, m *mesh.Meta, fields []pair, prefix string) {
	if d.kind == mesh.KindMesh { // a Mesh does not belong to a mesh
		fields = slices.DeleteFunc(fields, func(f pair) bool {
			if f.name() == "mesh" {
				d.unknown(prefix+"mesh", "mesh", "mesh", nil)
			}
			return f.name() == "mesh"
		})
	}
	var h head
	d.decode(mappingOf(fields), strings.TrimSuffix(prefix, "."), &h)
	d.same(prefix+"name", h.Name, &m.Name, &e.name)
	d.same(prefix+"mesh", h.Mesh, &m.Mesh, &e.mesh)
	switch path := prefix + "labels"; {
	case len(h.Labels) == 0:
	case len(m.Labels) > 0 && !maps.Equal(m.Labels, h.Labels):
		d.fail(d.fields[path].value, path, "", "must be the same as labels at the top level")
	default:
		m.Labels, d.labelsAt = h.Labels, prefix
	}
}

// same sets a text, unless it was set before. Then a different text is an error.
func (d *decoder) same(path, text string, to *string, at *field) {
	f, ok := d.fields[path]
	switch {
	case !ok:
	case *to == "":
		*to, *at = text, field{path, d.line(f.value)}
	case text != "" && *to != text:
		d.fail(f.value, path, text, "must be the same as "+at.path+", "+strconv.Quote(*to))
	}
}

func mappingOf(fields []pair) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields {
		n.Content = append(n.Content, f.key, f.value)
	}
	return n
}
