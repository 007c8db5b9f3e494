package store

import (
	"maps"
	"reflect"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// objectMeta lists the fields of Kubernetes' ObjectMeta, and mesh. Only name, mesh and labels are used.
var objectMeta = []string{
	"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
	"generation", "labels", "managedFields", "mesh", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
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
	_, hasSpec := find(fields, "spec")
	_, hasMetadata := find(fields, "metadata")
	var specFields, meta []pair
	if hasSpec || hasMetadata {
		d.root = "spec."
	}
	for _, f := range fields {
		switch f.name() {
		case "type":
		case "status": // what a control plane said about the object, never input: files may be what "sondectl get" writes
		case "name", "mesh", "labels":
			meta = append(meta, f)
		case "spec":
			specFields = append(specFields, d.mapping(f.value, "spec")...)
		case "metadata":
		default:
			if d.root == "" {
				specFields = append(specFields, f)
			} else {
				d.unknown(f, f.name(), f.name(), []string{"type", "name", "mesh", "labels", "metadata", "spec"})
			}
		}
	}
	e := &entry{Document: Document{Place: d.place}}
	m := d.meta(e, meta, fields)
	var spec any
	e.Object, spec = newObject(d.kind, m)
	d.fields(specFields, d.root, reflect.ValueOf(spec).Elem(), d.beside()...)
	return e
}

// beside returns the names of the fields beside those of the spec, where these are at the top level, too.
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

// meta reads name, mesh and labels from the top level and from metadata. It is an error if the two differ.
func (d *decoder) meta(e *entry, top, all []pair) mesh.Meta {
	var m mesh.Meta
	d.metaFields(e, &m, top, "")
	if f, ok := find(all, "metadata"); ok {
		var inner []pair
		for _, p := range d.mapping(f.value, "metadata") {
			if slices.Contains(objectMeta, p.name()) {
				inner = append(inner, p)
			} else {
				d.unknown(p, "metadata."+p.name(), "metadata."+p.name(), objectMeta)
			}
		}
		d.metaFields(e, &m, inner, "metadata.")
	}
	if label, ok := m.Labels[mesh.LabelMesh]; ok && d.kind != mesh.KindMesh {
		at := "labels"
		if _, top := find(top, "labels"); !top {
			at = "metadata.labels"
		}
		at += "[" + strconv.Quote(mesh.LabelMesh) + "]"
		if m.Mesh != "" && m.Mesh != label {
			d.report(d.lineOf(at), Error, &mesh.FieldError{Field: at, Value: label, Allowed: "must be the same as " + e.mesh.path + ", " + strconv.Quote(m.Mesh)})
		}
		if m.Mesh == "" {
			m.Mesh, e.mesh = label, field{at, d.lineOf(at)}
		}
	}
	if e.name.path == "" {
		e.name = field{"name", d.place.Line}
	}
	if e.mesh.path == "" {
		e.mesh = field{"mesh", d.place.Line}
	}
	return m
}

func (d *decoder) metaFields(e *entry, m *mesh.Meta, fields []pair, prefix string) {
	for _, f := range fields {
		path := prefix + f.name()
		switch f.name() {
		case "name":
			d.metaString(f, path, &e.name, &m.Name)
		case "mesh":
			if d.kind == mesh.KindMesh {
				d.unknown(f, path, "mesh", nil)
				continue
			}
			d.metaString(f, path, &e.mesh, &m.Mesh)
		case "labels":
			var labels map[string]string
			d.value(f.value, path, reflect.ValueOf(&labels).Elem())
			if m.Labels != nil && labels != nil && !maps.Equal(m.Labels, labels) {
				d.fail(f.value, path, "", "must be the same as labels at the top level")
			}
			if labels != nil {
				m.Labels, d.labelsAt = labels, prefix
			}
		}
	}
}

func (d *decoder) metaString(f pair, path string, at *field, to *string) {
	var text string
	d.value(f.value, path, reflect.ValueOf(&text).Elem())
	if *to != "" && text != "" && *to != text {
		d.fail(f.value, path, text, "must be the same as "+at.path+", "+strconv.Quote(*to))
	}
	if *to == "" {
		*to, *at = text, field{path, d.line(f.value)}
	}
}
