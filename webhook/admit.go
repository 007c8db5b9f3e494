package webhook

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// admitPod answers the creation of a pod: with a patch if it is injected, with a denial if it cannot be. It has no side
// effects, so a dry run gets the same answer.
func (s *Server) admitPod(ctx context.Context, body []byte) (*admissionv1.AdmissionResponse, error) {
	r, err := decodeReview[podDocument](body)
	if err != nil {
		return nil, err
	}
	if r.Resource.Group != corev1.GroupName || r.Resource.Resource != "pods" {
		return nil, malformed("request.resource: %q of group %q: must be pods", r.Resource.Resource, r.Resource.Group)
	}
	if r.Operation != admissionv1.Create || r.SubResource != "" {
		return &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}, nil // containers and probes never change
	}
	if r.Object == nil {
		return nil, malformed("request.object: is missing")
	}
	ns, err := s.namespace(ctx, r.Namespace)
	if err != nil {
		return nil, err
	}
	options, err := s.injectionOf(r.Object.Spec.DNSPolicy)
	if err != nil {
		return nil, err
	}
	in, err := r.Object.inject(ns, &options)
	if err == nil && in.selection.Injected {
		var refused error
		if refused, err = s.checkMesh(ctx, in.mesh); err != nil {
			return nil, err
		}
		err = refused
	}
	if err != nil {
		refusal := denial(r.UID, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"this pod cannot join the mesh: "+inOneLine(err))
		refusal.Warnings = in.warnings
		return refusal, nil
	}
	response := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true, Warnings: in.warnings}
	if len(in.patch) == 0 {
		return response, nil
	}
	if response.Patch, err = in.patch.encode(); err != nil {
		return nil, err
	}
	response.PatchType = new(admissionv1.PatchTypeJSONPatch)
	return response, nil
}

// injectionOf returns the options for a pod with this DNS policy.
func (s *Server) injectionOf(policy corev1.DNSPolicy) (options Options, err error) {
	options = s.injection
	if s.options.ControlPlaneCA != nil {
		options.ControlPlaneCA = string(s.options.ControlPlaneCA())
	}
	if s.options.Hold != nil {
		options.Hold = s.options.Hold()
	}
	options.controlPlaneIPs, err = s.controlPlaneIPs(policy)
	return options, err
}

func (s *Server) namespace(ctx context.Context, name string) (*Namespace, error) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return nil, malformed("request.namespace: %q: must be the name of a namespace", cut.Marked(name, 100))
	}
	ns, err := s.options.Namespace(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%w: read namespace %q: %w", errUnavailable, name, err)
	}
	return &ns, nil
}

// checkMesh returns the reason to reject a pod or Dataplane if its mesh does not exist.
func (s *Server) checkMesh(ctx context.Context, name string) (refused, err error) {
	meshes, err := s.options.Meshes(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%w: read meshes: %w", errUnavailable, err)
	}
	if slices.Contains(meshes, name) {
		return nil, nil
	}
	known := "this control plane has no meshes yet"
	if len(meshes) > 0 {
		known = "one of " + strings.Join(slices.Sorted(slices.Values(meshes)), ", ")
	}
	return &mesh.FieldError{
		Field: mesh.LabelMesh, Value: name, Allowed: "must be the name of an existing mesh: " + known,
	}, nil
}
