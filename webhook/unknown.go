package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	sigsjson "sigs.k8s.io/json"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxUnknown limits the shown path of a field, in bytes.
const maxUnknown = 100

// lifecycleDocument has the fields of corev1.Lifecycle that injection reads.
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

// exact is a probe or hook with its unknown fields. Injection only changes it if all fields are known, since a field of
// a later Kubernetes may change the request.
type exact[T any] struct {
	object T
	unread unread
}

// unread has the fields of a probe or hook that corev1's types lack.
type unread struct {
	fields  []string        // paths of the fields
	written json.RawMessage // complete probe or hook, nil without such fields
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *exact[T]) UnmarshalJSON(data []byte) error {
	wrong, err := sigsjson.UnmarshalStrict(data, &e.object, sigsjson.DisallowUnknownFields)
	for _, w := range wrong {
		if field, ok := errors.AsType[sigsjson.FieldError](w); ok {
			e.unread.fields = append(e.unread.fields, mesh.Shorten(field.FieldPath(), maxUnknown))
			e.unread.written = bytes.Clone(data)
		}
	}
	return err
}

// open returns the object, and records unknown fields.
func (e *exact[T]) open(unknown unknownFields) *T {
	if e == nil {
		return nil
	}
	if e.unread.written != nil {
		unknown[&e.object] = e.unread
	}
	return &e.object
}

// unknownFields of the probes and hooks of a pod, by *corev1.Probe or *corev1.LifecycleHandler.
type unknownFields map[any]unread

// of returns the unknown fields of a probe or of a hook; the other argument is nil.
func (u unknownFields) of(probe *corev1.Probe, hook *corev1.LifecycleHandler) unread {
	if probe != nil {
		return u[probe]
	}
	return u[hook]
}

// Unread has the JSON of a pod's probes and hooks with unknown fields, by Request.Field.
type Unread map[string]json.RawMessage

// ReadUnread reads the probes and hooks with unknown fields from a pod or a pod template as a JSON document.
func ReadUnread(document []byte) (Unread, error) {
	d, err := readPod(document)
	if err != nil {
		return nil, err
	}
	pod, unknown, err := d.pod()
	if err != nil || len(unknown) == 0 {
		return nil, err
	}
	u := Unread{}
	for _, h := range handlersOf(pod, unknown) {
		if h.unread.written != nil {
			u[h.field()] = h.unread.written
		}
	}
	return u, nil
}

// Encode encodes a pod as a JSON document with the original JSON of its unread probes and hooks.
func (u Unread) Encode(pod *corev1.Pod) ([]byte, error) {
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("encode pod: %w", err)
	}
	var p patch
	for _, h := range handlersOf(pod, nil) {
		if written := u[h.field()]; written != nil {
			p.replace(h.path(), written)
		}
	}
	if len(p) == 0 {
		return document, nil
	}
	return p.apply(document)
}
