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

// settings are what a pod's labels and annotations ask for.
type settings struct {
	mesh            string        // "" where the pod names none
	probes          *bool         // whether probes go by the agent; nil where the pod does not say
	port            int32         // asked for by the pod; 0 for none
	excludeInbound  []int32       // without repetition, in the user's order
	excludeOutbound []int32       //
	drainTime       time.Duration // asked for by the pod; 0 for none
}

// known are the annotations under prefixes of ours that are no surprise in a pod.
var known = []string{
	mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelMesh,
	mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesPort, mesh.AnnotationVirtualProbesPortRange,
	mesh.AnnotationDrainTime, mesh.AnnotationExcludeInboundPorts, mesh.AnnotationExcludeOutboundPorts,
	mesh.AnnotationServerFirstPorts, mesh.AnnotationInjectionWarnings, mesh.AnnotationControlPlaneCA,
}

// readSettings reads what a pod asks for. Bad values are errors, all of them in one.
func readSettings(meta *metav1.ObjectMeta) (s settings, warnings []string, err error) {
	var errs []error
	fail := func(key, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: annotation(key), Value: value, Allowed: allowed})
	}
	read := func(key string, parse func(value string) (allowed string)) {
		if value, ok := meta.Annotations[key]; ok {
			if allowed := parse(value); allowed != "" {
				fail(key, value, allowed)
			}
		}
	}
	if s.mesh, err = fromBoth(meta, mesh.LabelMesh); err != nil {
		errs = append(errs, err)
	} else if s.mesh != "" && !isMeshName(s.mesh) {
		fail(mesh.LabelMesh, s.mesh, meshNameRule)
	}
	read(mesh.AnnotationVirtualProbes, func(value string) (allowed string) {
		s.probes, allowed = parseSwitch(value)
		return allowed
	})
	read(mesh.AnnotationVirtualProbesPort, func(value string) (allowed string) {
		s.port, allowed = parsePort(value)
		return allowed
	})
	read(mesh.AnnotationVirtualProbesPortRange, checkRange)
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
	return s, unknown(meta), errors.Join(errs...)
}

func annotation(key string) string { return fmt.Sprintf("metadata.annotations[%q]", key) }

// unknown warns of annotations that Sonde might be thought to obey.
func unknown(meta *metav1.ObjectMeta) (warnings []string) {
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		ours := slices.ContainsFunc([]string{mesh.Prefix, mesh.TrafficPrefix, mesh.OwnPrefix}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix)
		})
		if ours && !slices.Contains(known, key) {
			warnings = append(warnings, annotation(key)+": Sonde does not know this annotation, it has no effect")
		}
	}
	return warnings
}

// fromBoth reads what may be a label or an annotation. Both are fine as long as they agree.
func fromBoth(meta *metav1.ObjectMeta, key string) (string, error) {
	label, isLabel := meta.Labels[key]
	value, isAnnotation := meta.Annotations[key]
	switch {
	case isLabel && isAnnotation && label != value:
		return "", &mesh.FieldError{Field: annotation(key), Value: value, Allowed: fmt.Sprintf("the label of the same name says %q", label)}
	case isAnnotation:
		return value, nil
	default:
		return label, nil
	}
}

// forbidden returns the label or annotation by which a pod says that it wants no sidecar, "" if it does not say so.
func forbidden(meta *metav1.ObjectMeta) (string, error) {
	for _, key := range []string{mesh.LabelOwnInjection, mesh.LabelInjection} {
		value, err := fromBoth(meta, key)
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

// parseSwitch returns what is allowed where value is not.
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

// parsePorts reads "9800,9801"; an empty list is none.
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

func checkRange(value string) (allowed string) {
	first, last, _ := strings.Cut(value, "-")
	from, wrong := parsePort(first)
	to, wrongToo := parsePort(last)
	if wrong != "" || wrongToo != "" || from > to {
		return "must be two ports from 1 to 65535 with a - between them, the lower first"
	}
	return ""
}

// parseDrainTime takes what sonde-dp takes.
func parseDrainTime(value string) (d time.Duration, allowed string) {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Second || d > time.Hour {
		return 0, "must be a duration from 1s to 1h, such as 30s"
	}
	return d, ""
}
