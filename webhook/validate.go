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

// objectDocument is a Mesh or a Dataplane, with an undecoded spec.
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
	if r.Kind.Group != mesh.Group || r.Kind.Version != mesh.Version ||
		kind != mesh.KindMesh && kind != mesh.KindDataplane {
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
		// A finalizer is being removed. An object that is being deleted need not be valid.
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

// deleteMesh denies the deletion of a mesh in use, whose proxies would lose their certificates.
func (s *Server) deleteMesh(r *request[objectDocument]) (*admissionv1.AdmissionResponse, error) {
	name := r.Name // "" if a whole collection is deleted
	if name == "" && r.OldObject != nil {
		name = r.OldObject.Metadata.Name
	}
	if name == "" {
		return nil, malformed("request.name: is missing")
	}
	n, err := s.options.InUse(name)
	if err != nil {
		return nil, fmt.Errorf("%w: count objects of mesh %q: %w", errUnavailable, name, err)
	}
	if n > 0 {
		return denial(r.UID, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("mesh %q is in use: its number of pods and Dataplanes is %d: must be 0", name, n)), nil
	}
	return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}, nil
}

func (d *objectDocument) checkMesh() (warnings []string, refused error) {
	o := &mesh.Mesh{Name: d.Metadata.Name, Labels: d.Metadata.Labels}
	if refused = d.check(o, &o.Spec, o.Validate); refused != nil {
		return nil, refused // a value omitted because of an error would look like an unset one
	}
	return warningsOf(o), nil
}

// warningsOf returns warnings about deprecated or ineffective fields of an object, with Kubernetes paths.
func warningsOf(o mesh.Warner) (warnings []string) {
	for _, w := range o.Warnings() {
		w.Field = fieldOf(w.Field)
		warnings = append(warnings, w.Error())
	}
	return warnings
}

// checkDataplane returns the errors of a Dataplane, whose name in the mesh is the object's name and namespace.
func (s *Server) checkDataplane(
	ctx context.Context, namespace string, d *objectDocument,
) (warnings []string, refused, err error) {
	ns, err := s.namespace(ctx, namespace)
	if err != nil {
		return nil, nil, err
	}
	meshOfNamespace, refused := ns.mesh()
	o := &mesh.Dataplane{Meta: mesh.Meta{
		Name: mesh.ObjectDataplane(namespace, d.Metadata.Name), Labels: d.Metadata.Labels,
		Mesh: cmp.Or(d.Metadata.Labels[mesh.LabelMesh], meshOfNamespace),
	}, ProbesMode: s.injection.ProbesMode}
	refused = errors.Join(refused, d.check(o, &o.Spec, func() error { return o.ValidateIn(namespace) }),
		mesh.CheckMeshOf(namespace, ns.Annotations, o.Mesh))
	taken, err := s.options.PodExists(namespace, d.Metadata.Name)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: get pod %q in namespace %q: %w", errUnavailable, d.Metadata.Name, namespace, err)
	}
	if taken {
		refused = errors.Join(refused, &mesh.FieldError{
			Field: "metadata.name", Value: d.Metadata.Name, Allowed: "must not be the name of a pod in the same namespace, which has a Dataplane with this name",
		})
	}
	if refused == nil { // a value omitted because of an error would look like an unset one
		warnings = warningsOf(o)
	}
	unknownMesh, err := s.checkMesh(ctx, o.Mesh)
	if unknownMesh != nil { // the Mesh may be created later, from the same file
		warnings = append(warnings, inOneLine(unknownMesh))
	}
	return warnings, refused, err
}

// check reads the spec into an object of the model, and returns its errors. The API server has already rejected what
// the CustomResourceDefinition's schema forbids, such as unknown fields and port 0, which the default would replace
// here.
func (d *objectDocument) check(o mesh.Object, spec any, validate func() error) error {
	defer o.SetDefaults() // only the mesh's name matters here
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

// fieldOf converts a path of the model to a path in the Kubernetes object.
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
