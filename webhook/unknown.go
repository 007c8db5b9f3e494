package webhook

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxUnknown is how much of the path of a field is shown, in bytes.
const maxUnknown = 100

// lifecycleDocument is what injection reads of corev1.Lifecycle.
type lifecycleDocument struct {
	PostStart *exact[corev1.LifecycleHandler] `json:"postStart"`
	PreStop   *exact[corev1.LifecycleHandler] `json:"preStop"`
}

func (l *lifecycleDocument) open(unknown unknownFields) *corev1.Lifecycle {
	if l == nil {
		return nil
	}
	return &corev1.Lifecycle{PostStart: l.PostStart.open(unknown), PreStop: l.PreStop.open(unknown)}
}

// exact is a probe or hook, which injection changes only if it knows all of its fields: a later Kubernetes may have one
// that decides what is asked.
type exact[T any] struct {
	object  T
	unknown []string // paths of the others
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *exact[T]) UnmarshalJSON(data []byte) error {
	wrong, err := json.UnmarshalStrict(data, &e.object, json.DisallowUnknownFields)
	for _, w := range wrong {
		if field, ok := errors.AsType[json.FieldError](w); ok {
			e.unknown = append(e.unknown, mesh.Shorten(field.FieldPath(), maxUnknown))
		}
	}
	return err
}

// open returns the object, and records the fields that are not known.
func (e *exact[T]) open(unknown unknownFields) *T {
	if e == nil {
		return nil
	}
	if len(e.unknown) > 0 {
		unknown[&e.object] = e.unknown
	}
	return &e.object
}

// unknownFields are those of the probes and hooks of a pod, by *corev1.Probe or *corev1.LifecycleHandler.
type unknownFields map[any][]string

// of returns the unknown fields of a probe or hook, of which one is nil.
func (u unknownFields) of(probe *corev1.Probe, hook *corev1.LifecycleHandler) []string {
	if probe != nil {
		return u[probe]
	}
	return u[hook]
}
