package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// objectDocument is a Mesh or a Dataplane, of which the spec is read later.
type objectDocument struct {
	Metadata struct {
		Name              string            `json:"name"`
		Labels            map[string]string `json:"labels"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// validateObject answers the creation, update and deletion of a Mesh or a Dataplane.
func (s *Server) validateObject(ctx context.Context, body []byte) (*admissionv1.AdmissionResponse, error) {
	r, err := decodeReview[objectDocument](body)
	if err != nil {
		return nil, err
	}
	kind := mesh.Kind(r.Kind.Kind)
	if r.Kind.Group != mesh.Group || r.Kind.Version != mesh.Version || kind != mesh.KindMesh && kind != mesh.KindDataplane {
		return nil, malformed("request.kind: %s %q: must be Mesh or Dataplane of %s/%s", r.Kind.Group+"/"+r.Kind.Version, r.Kind.Kind, mesh.Group, mesh.Version)
	}
	switch {
	case r.Operation == admissionv1.Delete && kind == mesh.KindMesh:
		return s.deleteMesh(r)
	case r.Operation != admissionv1.Create && r.Operation != admissionv1.Update:
		return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}, nil
	case r.Object == nil:
		return nil, malformed("request.object: is missing")
	case r.Object.Metadata.DeletionTimestamp != nil:
		// A finalizer is being removed. An object that is being deleted need not be right.
		return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}, nil
	}
	var warnings []string
	var refused error
	if kind == mesh.KindMesh {
		warnings, refused = r.Object.checkMesh()
	} else {
		warnings, refused, err = s.checkDataplane(ctx, r.Namespace, r.Object)
	}
	if err != nil {
		return nil, err
	}
	response := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	if refused != nil {
		response = denial(r.UID, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, inOneLine(refused))
	}
	response.Warnings = warnings
	return response, nil
}

// deleteMesh refuses to delete a mesh that is in use: its proxies would lose their certificates.
func (s *Server) deleteMesh(r *request[objectDocument]) (*admissionv1.AdmissionResponse, error) {
	name := r.Name // "" where a whole collection is deleted
	if name == "" && r.OldObject != nil {
		name = r.OldObject.Metadata.Name
	}
	if name == "" {
		return nil, malformed("request.name: is missing")
	}
	n, err := s.options.InUse(name)
	if err != nil {
		return nil, fmt.Errorf("%w: count what is in mesh %q: %w", errUnavailable, name, err)
	}
	if n > 0 {
		return denial(r.UID, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("mesh %q is in use: the number of its pods and Dataplanes is %d, and must be 0", name, n)), nil
	}
	return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}, nil
}

func (d *objectDocument) checkMesh() (warnings []string, refused error) {
	o := &mesh.Mesh{Name: d.Metadata.Name, Labels: d.Metadata.Labels}
	if refused = d.check(o, &o.Spec, o.Validate); refused != nil {
		return nil, refused // what a mistake left out would look as if it were not written
	}
	return warningsOf(o), nil
}

// warningsOf returns what is deprecated or without effect in an object, with paths of Kubernetes.
func warningsOf(o mesh.Warner) (warnings []string) {
	for _, w := range o.Warnings() {
		w.Field = fieldOf(w.Field)
		warnings = append(warnings, w.Error())
	}
	return warnings
}

// checkDataplane returns what is wrong with a Dataplane. Its name in the mesh is that of the object and its namespace.
func (s *Server) checkDataplane(ctx context.Context, namespace string, d *objectDocument) (warnings []string, refused, err error) {
	ns, err := s.namespace(ctx, namespace)
	if err != nil {
		return nil, nil, err
	}
	meshOfNamespace, refused := ns.mesh()
	o := &mesh.Dataplane{Meta: mesh.Meta{
		Name: mesh.ObjectDataplane(namespace, d.Metadata.Name), Labels: d.Metadata.Labels,
		Mesh: cmp.Or(d.Metadata.Labels[mesh.LabelMesh], meshOfNamespace),
	}, ProbesMode: s.injection.ProbesMode}
	refused = errors.Join(refused, d.check(o, &o.Spec, func() error { return o.ValidateIn(namespace) }), mesh.CheckMeshOf(namespace, ns.Annotations, o.Mesh))
	taken, err := s.options.PodExists(namespace, d.Metadata.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: look for pod %q in namespace %q: %w", errUnavailable, d.Metadata.Name, namespace, err)
	}
	if taken {
		refused = errors.Join(refused, &mesh.FieldError{
			Field: "metadata.name", Value: d.Metadata.Name, Allowed: "must not be the name of a pod in the same namespace: it has a Dataplane of this name",
		})
	}
	if refused == nil { // what a mistake left out would look as if it were not written
		warnings = warningsOf(o)
	}
	unknownMesh, err := s.checkMesh(ctx, o.Mesh)
	if unknownMesh != nil { // it may come later, in the same file
		warnings = append(warnings, inOneLine(unknownMesh))
	}
	return warnings, refused, err
}

// check reads the spec into an object of the model, and returns what is wrong with it. The API server has refused what the schema of the
// CustomResourceDefinition does not allow, such as unknown fields and a port 0, which the default would take the place of.
func (d *objectDocument) check(o mesh.Object, spec any, validate func() error) error {
	defer o.SetDefaults() // of the name of its mesh, whatever is wrong
	if len(d.Spec) > 0 {
		if err := kjson.Unmarshal(d.Spec, spec); err != nil {
			return mesh.ExplainJSON("spec", d.Spec, spec)
		}
	}
	o.SetDefaults()
	refused := validate()
	if joined, ok := refused.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			if f, ok := errors.AsType[*mesh.FieldError](err); ok {
				f.Field = fieldOf(f.Field)
			}
		}
	}
	return refused
}

// fieldOf returns the path in a Kubernetes object for a path of the model.
func fieldOf(field string) string {
	switch {
	case field == "name":
		return "metadata.name"
	case field == "mesh":
		return labelField(mesh.LabelMesh)
	case strings.HasPrefix(field, "labels["):
		return "metadata." + field
	}
	return "spec." + field
}
