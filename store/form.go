package store

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

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
	_, hasSpec := find(fields, "spec")
	_, hasMetadata := find(fields, "metadata")
	var spec, meta []pair
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
			spec = append(spec, d.mapping(f.value, "spec")...)
		case "metadata":
		default:
			if d.root == "" {
				spec = append(spec, f)
			} else {
				d.unknown(f, f.name(), f.name(), []string{"type", "name", "mesh", "labels", "metadata", "spec"})
			}
		}
	}
	e := &entry{Document: Document{Place: d.place}}
	m := d.meta(e, meta, fields)
	var target any
	switch d.kind {
	case mesh.KindMesh:
		o := &mesh.Mesh{Name: m.Name, Labels: m.Labels}
		e.Object, target = o, &o.Spec
	case mesh.KindDataplane:
		o := &mesh.Dataplane{Meta: m}
		e.Object, target = o, &o.Spec
	case mesh.KindService:
		o := &mesh.Service{Meta: m}
		e.Object, target = o, &o.Spec
	}
	d.fields(spec, d.root, reflect.ValueOf(target).Elem())
	return e
}

func (d *decoder) readKind(top *yaml.Node, fields []pair) bool {
	known := make([]string, 0, 3)
	for _, k := range mesh.Kinds() {
		known = append(known, string(k))
	}
	allowed := "must be one of " + strings.Join(known, ", ")
	f, ok := find(fields, "type")
	switch {
	case !ok:
		d.fail(top, "type", "", "is missing: "+allowed)
	case !isString(f.value) || !slices.Contains(known, f.value.Value):
		d.fail(f.value, "type", valueText(f.value), allowed)
	default:
		d.kind = mesh.Kind(f.value.Value)
		return true
	}
	return false
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
				m.Labels = labels
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
