package webhook

import (
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
	mesh.AnnotationServerFirstPorts, mesh.AnnotationInjectionWarnings, mesh.AnnotationControlPlaneCA,
}

// readSettings reads the settings of a pod. The error joins one error for each bad value.
func readSettings(meta *metav1.ObjectMeta) (s settings, warnings []string, err error) {
	var errs []error
	fail := func(key, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: annotationField(key), Value: value, Allowed: allowed})
	}
	read := func(key string, parse func(value string) (allowed string)) {
		if value, ok := meta.Annotations[key]; ok {
			if allowed := parse(value); allowed != "" {
				fail(key, value, allowed)
			}
		}
	}
	if s.mesh, err = labelOrAnnotation(meta, mesh.LabelMesh); err != nil {
		errs = append(errs, err)
	} else if s.mesh != "" && !isMeshName(s.mesh) {
		fail(mesh.LabelMesh, s.mesh, meshNameRule)
	}
	read(mesh.AnnotationVirtualProbes, func(value string) (allowed string) {
		s.probesEnabled, allowed = parseSwitch(value)
		return allowed
	})
	read(mesh.AnnotationVirtualProbesPort, func(value string) (allowed string) {
		s.virtualPort, allowed = parsePort(value)
		return allowed
	})
	read(mesh.AnnotationVirtualProbesPortRange, checkPortRange)
	read(mesh.AnnotationDrainTime, func(value string) (allowed string) {
		s.drainTime, allowed = parseDrainTime(value)
		return allowed
	})
	read(mesh.AnnotationExcludeInboundPorts, func(value string) (allowed string) {
		s.excludeInbound, allowed = parsePorts(value)
		return allowed
	})
	read(mesh.AnnotationExcludeOutboundPorts, func(value string) (allowed string) {
		s.excludeOutbound, allowed = parsePorts(value)
		return allowed
	})
	read(mesh.AnnotationServerFirstPorts, func(value string) (allowed string) {
		_, allowed = parsePorts(value)
		return allowed
	})
	return s, unknownAnnotations(meta), errors.Join(errs...)
}

func annotationField(key string) string { return fmt.Sprintf("metadata.annotations[%q]", key) }

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

// labelOrAnnotation returns the value of a key that may be a label or an annotation. It is an error if it is both, with
// different values.
func labelOrAnnotation(meta *metav1.ObjectMeta, key string) (string, error) {
	label, isLabel := meta.Labels[key]
	value, isAnnotation := meta.Annotations[key]
	switch {
	case isLabel && isAnnotation && label != value:
		return "", &mesh.FieldError{Field: annotationField(key), Value: value, Allowed: fmt.Sprintf("the label of the same name says %q", label)}
	case isAnnotation:
		return value, nil
	default:
		return label, nil
	}
}

// disabledBy returns the key of the label or annotation that disables injection for the pod, "" if there is none.
func disabledBy(meta *metav1.ObjectMeta) (string, error) {
	for _, key := range []string{mesh.LabelOwnInjection, mesh.LabelInjection} {
		value, err := labelOrAnnotation(meta, key)
		if err != nil {
			return "", err
		}
		_, isLabel := meta.Labels[key]
		_, isAnnotation := meta.Annotations[key]
		if !isLabel && !isAnnotation {
			continue
		}
		on, allowed := parseSwitch(value)
		switch field := "metadata.labels"; {
		case allowed != "":
			if isAnnotation {
				field = "metadata.annotations"
			}
			return "", &mesh.FieldError{Field: fmt.Sprintf("%s[%q]", field, key), Value: value, Allowed: allowed}
		case *on:
			return "", nil
		default:
			return key, nil
		}
	}
	return "", nil
}

// parseSwitch, like the parsers below, returns what is allowed if value is not.
func parseSwitch(value string) (on *bool, allowed string) {
	switch value {
	case "enabled", "true":
		return new(true), ""
	case "disabled", "false":
		return new(false), ""
	}
	return nil, "must be enabled or disabled"
}

func parsePort(value string) (port int32, allowed string) {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n == 0 {
		return 0, portRule
	}
	return int32(n), ""
}

// parsePorts parses a list such as "9800,9801", which may be empty.
func parsePorts(value string) (ports []int32, allowed string) {
	if strings.TrimSpace(value) == "" {
		return nil, ""
	}
	for word := range strings.SplitSeq(value, ",") {
		port, allowed := parsePort(strings.TrimSpace(word))
		if allowed != "" {
			return nil, "must be ports from 1 to 65535 with commas between them, or empty"
		}
		if !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports, ""
}

func checkPortRange(value string) (allowed string) {
	first, last, _ := strings.Cut(value, "-")
	from, wrong := parsePort(first)
	to, wrongToo := parsePort(last)
	if wrong != "" || wrongToo != "" || from > to {
		return "must be two ports from 1 to 65535 with a - between them, the lower first"
	}
	return ""
}

// parseDrainTime accepts what sonde-dp accepts as --drain-time.
func parseDrainTime(value string) (d time.Duration, allowed string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Second || d > time.Hour {
		return 0, "must be a duration from 1s to 1h, such as 30s"
	}
	return d, ""
}
