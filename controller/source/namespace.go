package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Namespace is the record of a namespace.
type Namespace struct {
	// Labels are all its labels, which the webhook evaluates.
	Labels map[string]string
	// Annotations are those in readAnnotations.
	Annotations map[string]string
}

// readAnnotations are the annotations of namespaces that the webhook evaluates.
var readAnnotations = []string{
	mesh.AnnotationVirtualProbesMode, mesh.AnnotationMeshes, mesh.AnnotationGuardedLiveness, mesh.AnnotationGuardedExec,
	mesh.AnnotationSidecarCPU, mesh.AnnotationSidecarCPULimit, mesh.AnnotationSidecarMemory,
	mesh.AnnotationSidecarMemoryLimit,
}

func readNamespace(n *corev1.Namespace) (Namespace, bool) {
	r := Namespace{Labels: maps.Clone(n.Labels)}
	for _, key := range readAnnotations {
		if value, ok := n.Annotations[key]; ok {
			if r.Annotations == nil {
				r.Annotations = map[string]string{}
			}
			r.Annotations[key] = strings.Clone(value)
		}
	}
	return r, true
}

// Mesh returns the mesh of its Services, and of its pods without a mesh of their own.
func (n *Namespace) Mesh() string {
	if n != nil && n.Labels[mesh.LabelMesh] != "" {
		return n.Labels[mesh.LabelMesh]
	}
	return mesh.DefaultMesh
}

// Namespace returns a namespace, nil if it is unknown.
func (s *Source) Namespace(name string) *Namespace { return s.namespaces.Get(watch.Key{Name: name}) }

// Guarded returns the namespaces where the webhook injects, or where pods have guarded liveness; the value is the
// default for pods without an annotation.
func (s *Source) Guarded() map[string]bool {
	all := map[string]bool{}
	for _, key := range s.namespaces.Keys() {
		n := s.namespaces.Get(key)
		if n == nil {
			continue
		}
		is := func(value string) bool {
			on, err := mesh.ParseSwitch(value)
			return err == nil && on
		}
		guarded := is(n.Annotations[mesh.AnnotationGuardedLiveness])
		if guarded || is(n.Labels[mesh.LabelInjection]) || is(n.Labels[mesh.LabelOwnInjection]) {
			all[key.Name] = guarded
		}
	}
	return all
}

// ReadNamespace returns a namespace, read from the API server now.
func (s *Source) ReadNamespace(ctx context.Context, name string) (*Namespace, error) {
	// The rights include list, but not get.
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	list, err := s.o.Client.CoreV1().Namespaces().List(ctx, one)
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range list.Items {
		if n, ok := readNamespace(&list.Items[i]); ok {
			return &n, nil
		}
	}
	return nil, errors.New("not found")
}

func (s *Source) namespaceChanged(key watch.Key, before, now *Namespace) {
	if before.Mesh() != now.Mesh() {
		s.mark(func(d *dirty) { d.namespaces[key] = struct{}{} })
		s.o.MeshChanged(key.Name)
	}
}
