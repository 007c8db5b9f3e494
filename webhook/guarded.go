package webhook

import (
	"errors"
	"fmt"
	"maps"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// chooseGuarded decides whether the liveness probes of the pod are guarded: as the pod says, else as its namespace does. In a guarded pod,
// containers get back the probes that only mesh.AnnotationProbeContext has.
func (in *injection) chooseGuarded() error {
	asked := in.settings.guarded
	if asked == nil && in.namespace != nil {
		if value, ok := in.namespace.Annotations[mesh.AnnotationGuardedLiveness]; ok {
			var err error
			if asked, err = parseSwitch(value); err != nil {
				field := "namespace " + in.namespace.Name + ": " + annotationField(mesh.AnnotationGuardedLiveness)
				return &mesh.FieldError{Field: field, Value: value, Err: err}
			}
		}
	}
	if in.guarded = asked != nil && *asked; !in.guarded {
		return nil
	}
	return in.readProbeContext()
}

var errEnhancedLiveness = errors.New("must be true or false")

// parseEnhancedLiveness parses OpenKruise's switch. OpenKruise itself takes anything but true as false.
func parseEnhancedLiveness(value string) (*bool, error) {
	if value != "true" && value != "false" {
		return nil, errEnhancedLiveness
	}
	return new(value == "true"), nil
}

// markGuarded marks the entry of the probe table for a liveness probe of a guarded pod, if the agent can discard its failures, and no other.
func (in *injection) markGuarded(h handler, p *mesh.Probe) {
	p.Guarded, p.FailureThreshold, p.PeriodSeconds = false, 0, 0
	if in.guarded && h.kind == mesh.ProbeLiveness && in.undiscarded(p) == "" {
		p.Guarded, p.FailureThreshold, p.PeriodSeconds = true, h.probe.FailureThreshold, h.probe.PeriodSeconds
		p.SetDefaults()
	}
}

// undiscarded returns why the kubelet would count each failure of a probe that is answered in the application's place, "" if it need not.
func (in *injection) undiscarded(p *mesh.Probe) string {
	switch {
	case !in.perPort() || !p.WantsOwnPort():
		return ""
	case p.Protocol() == mesh.ProtocolTCP:
		return "the kernel answers tcpSocket probes in the per-port mode"
	}
	return "the kubelet discards no answer to a grpc probe, which is what it asks in the per-port mode"
}

// unguarded returns Decision.Unguarded.
func (in *injection) unguarded(d Decision) string {
	switch {
	case !in.guarded || d.Type != mesh.ProbeLiveness:
		return ""
	case d.Probe == nil:
		return d.Why
	}
	return in.undiscarded(d.Probe)
}

// recordGuarded adds the annotations of a guarded pod to others: that it is guarded, by whichever annotation, and its liveness probes.
func (in *injection) recordGuarded(annotations map[string]string) error {
	if _, ok := in.pod.Annotations[mesh.AnnotationGuardedLiveness]; !ok {
		annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	}
	before, now := in.context, in.originals()
	if len(before) == 0 && len(now) == 0 {
		return nil
	}
	textBefore, err := before.encode()
	if err != nil {
		return err
	}
	text, err := now.encode()
	if err != nil {
		return err
	}
	if text != textBefore { // else it may be written in another way
		annotations[mesh.AnnotationProbeContext] = text
	}
	return nil
}

// maxAnnotations is what the API server allows for the keys and values of all annotations of an object, in bytes.
// Source: k8s.io/apimachinery pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
const maxAnnotations = 256 << 10

// checkAnnotations returns an error if mesh.AnnotationProbeContext does not fit beside the other annotations of a guarded pod.
func (in *injection) checkAnnotations(added map[string]string) error {
	if !in.guarded {
		return nil
	}
	all := maps.Clone(added)
	for key, value := range in.pod.Annotations {
		if _, replaced := all[key]; !replaced {
			all[key] = value
		}
	}
	size := 0
	for key, value := range all {
		size += len(key) + len(value)
	}
	if size <= maxAnnotations {
		return nil
	}
	return &mesh.FieldError{Field: annotationField(mesh.AnnotationProbeContext), Err: fmt.Errorf(
		"the liveness probes of this pod take %d bytes here, with which its annotations have %d: %d is the most that a pod may have",
		len(all[mesh.AnnotationProbeContext]), size, maxAnnotations)}
}
