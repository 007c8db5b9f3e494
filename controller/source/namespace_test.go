package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestGuardedNamespaces(t *testing.T) {
	s := newSource(t, nil)
	for name, n := range map[string]corev1.Namespace{
		"plain":         {},
		"injected":      {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mesh.LabelInjection: "enabled"}}},
		"of-sonde":      {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mesh.LabelOwnInjection: "true"}}},
		"not-injected":  {ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mesh.LabelInjection: "disabled"}}},
		"guarded":       {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "enabled"}}},
		"not-guarded":   {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "disabled"}}},
		"wrongly-named": {ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "yes"}}},
	} {
		n.Name = name
		if err := s.namespaces.Add(&n); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]bool{"injected": false, "of-sonde": false, "guarded": true}, s.Guarded()); diff != "" {
		t.Errorf("Guarded() (-want +got):\n%s", diff)
	}
}
