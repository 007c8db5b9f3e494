package webhook

import (
	"cmp"
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// chooseMode decides whether the agent answers probes, and uses the pod's mode, then its namespace's, then the default.
// An injected pod keeps both.
func (in *injection) chooseMode() (err error) {
	in.enabled = in.settings.probesEnabled == nil || *in.settings.probesEnabled
	in.mode = in.settings.probesMode
	if e := in.earlier; e != nil {
		if in.mode != "" && e.enabled && in.mode != e.mode {
			return fmt.Errorf("%s: %s: %s is already in mode %s", mesh.AnnotationVirtualProbesMode, in.mode, mesh.ContainerSidecar, e.mode)
		}
		in.enabled, in.mode = e.enabled, e.mode
		return nil
	}
	if in.mode == "" && in.namespace != nil {
		if in.mode, err = ProbesModeOf(in.namespace.Labels, in.namespace.Annotations); err != nil {
			return fmt.Errorf("namespace %s: %w", in.namespace.Name, err)
		}
	}
	in.mode = cmp.Or(in.mode, in.options.ProbesMode)
	return nil
}

// ProbesModeOf returns the mode of probes that a label or an annotation names, "" if none does.
func ProbesModeOf(labels, annotations map[string]string) (mesh.ProbesMode, error) {
	const key = mesh.AnnotationVirtualProbesMode
	label, isLabel := labels[key]
	value, isAnnotation := annotations[key]
	field := annotationField(key)
	switch {
	case isLabel && isAnnotation && label != value:
		return "", contradiction(key, value, label)
	case isLabel:
		field, value = labelField(key), label
	case !isAnnotation:
		return "", nil
	}
	mode, err := mesh.ParseProbesMode(value)
	if err != nil {
		return "", &mesh.FieldError{Field: field, Value: value, Err: err}
	}
	return mode, nil
}
