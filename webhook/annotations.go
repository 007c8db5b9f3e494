package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// settings are what the labels and annotations of a pod say.
type settings struct {
	mesh            string        // "" if the pod names none
	probesEnabled   *bool         // nil if the pod does not say
	virtualPort     int32         // 0 if the pod asks for none
	excludeInbound  []int32       // without duplicates, in the user's order
	excludeOutbound []int32       // the same
	drainTime       time.Duration // 0 if the pod asks for none
}

// knownAnnotations are the annotations of a pod, with one of our prefixes, that are not worth a warning.
var knownAnnotations = []string{
	mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelMesh,
	mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesPort, mesh.AnnotationVirtualProbesPortRange,
	mesh.AnnotationDrainTime, mesh.AnnotationExcludeInboundPorts, mesh.AnnotationExcludeOutboundPorts,
	mesh.AnnotationServerFirstPorts, mesh.AnnotationReachableServices, mesh.AnnotationInjectionWarnings, mesh.AnnotationControlPlaneCA,
}

// readSettings reads the settings of a pod. The error joins one error for each bad value.
func readSettings(meta *metav1.ObjectMeta) (s settings, warnings []string, err error) {
	var errs []error
	read := func(key string, parse func(value string) error) {
		if value, ok := meta.Annotations[key]; ok {
			if err := parse(value); err != nil {
				errs = append(errs, &mesh.FieldError{Field: annotationField(key), Value: value, Err: err})
			}
		}
	}
	if s.mesh, err = meshOf(meta); err != nil {
		errs = append(errs, err)
	}
	read(mesh.AnnotationVirtualProbes, into(&s.probesEnabled, parseSwitch))
	read(mesh.AnnotationVirtualProbesPort, into(&s.virtualPort, parsePort))
	read(mesh.AnnotationVirtualProbesPortRange, checkPortRange)
	read(mesh.AnnotationDrainTime, into(&s.drainTime, parseDrainTime))
	read(mesh.AnnotationExcludeInboundPorts, into(&s.excludeInbound, parseInboundPorts))
	read(mesh.AnnotationExcludeOutboundPorts, into(&s.excludeOutbound, parsePorts))
	var serverFirst []int32 // only checked: the control plane reads it from the pod
	read(mesh.AnnotationServerFirstPorts, into(&serverFirst, parsePorts))
	return s, unknownAnnotations(meta), errors.Join(errs...)
}

// into returns a function that parses a value into target.
func into[T any](target *T, parse func(string) (T, error)) func(string) error {
	return func(value string) (err error) {
		*target, err = parse(value)
		return err
	}
}

func annotationField(key string) string { return "metadata.annotations[" + strconv.Quote(key) + "]" }

func labelField(key string) string { return "metadata.labels[" + strconv.Quote(key) + "]" }

// meshOf returns the mesh that a label or an annotation names, "" if none does. An empty name counts as none.
func meshOf(meta *metav1.ObjectMeta) (string, error) {
	label, value := meta.Labels[mesh.LabelMesh], meta.Annotations[mesh.LabelMesh]
	switch {
	case label != "" && value != "" && label != value:
		return "", contradiction(mesh.LabelMesh, value, label)
	case label != "" && !isMeshName(label):
		return "", &mesh.FieldError{Field: labelField(mesh.LabelMesh), Value: label, Allowed: meshNameRule}
	case value != "" && !isMeshName(value):
		return "", &mesh.FieldError{Field: annotationField(mesh.LabelMesh), Value: value, Allowed: meshNameRule}
	}
	return cmp.Or(label, value), nil
}

// contradiction returns the error for an annotation that differs from the label with its key.
func contradiction(key, annotation, label string) error {
	return &mesh.FieldError{Field: annotationField(key), Value: annotation, Allowed: fmt.Sprintf("the label of the same name says %q", label)}
}

// unknownAnnotations returns a warning for each annotation that has one of our prefixes and no effect.
func unknownAnnotations(meta *metav1.ObjectMeta) (warnings []string) {
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		ours := slices.ContainsFunc([]string{mesh.Prefix, mesh.TrafficPrefix, mesh.OwnPrefix}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix)
		})
		if ours && !slices.Contains(knownAnnotations, key) {
			warnings = append(warnings, annotationField(key)+": Sonde does not know this annotation, it has no effect")
		}
	}
	return warnings
}

// Errors of the parsers: each says what is allowed.
var (
	errSwitch    = errors.New("must be enabled or disabled")
	errPort      = errors.New(mesh.AllowedPort)
	errPorts     = errors.New("must be ports from 1 to 65535 with commas between them, or empty")
	errReadiness = fmt.Errorf("must not have %d: only redirected connections reach the readiness of the sidecar", mesh.PortReadiness)
	errPortRange = errors.New("must be two ports from 1 to 65535 with a - between them, the lower first")
	errDrainTime = errors.New(mesh.AllowedDrainTime)
)

func parseSwitch(value string) (*bool, error) {
	switch value {
	case "enabled", "true":
		return new(true), nil
	case "disabled", "false":
		return new(false), nil
	}
	return nil, errSwitch
}

func parsePort(value string) (int32, error) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 {
		return 0, errPort
	}
	return int32(n), nil
}

// parsePorts parses a list such as "9800,9801", which may be empty.
func parsePorts(value string) (ports []int32, err error) {
	if strings.TrimSpace(value) == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(value, ",") {
		port, err := parsePort(strings.TrimSpace(word))
		if err != nil {
			return nil, errPorts
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports, nil
}

// parseInboundPorts accepts what the init container accepts as --exclude-inbound-ports.
func parseInboundPorts(value string) ([]int32, error) {
	ports, err := parsePorts(value)
	if slices.Contains(ports, mesh.PortReadiness) {
		return nil, errReadiness
	}
	return ports, err
}

func checkPortRange(value string) error {
	first, last, _ := strings.Cut(value, "-")
	from, err := parsePort(first)
	to, errTo := parsePort(last)
	if err != nil || errTo != nil || from > to {
		return errPortRange
	}
	return nil
}

// parseDrainTime accepts what the agent accepts.
func parseDrainTime(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < mesh.MinDrainTime || d > mesh.MaxDrainTime {
		return 0, errDrainTime
	}
	return d, nil
}
