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

// settings are a pod's settings from its labels and annotations.
type settings struct {
	mesh            string          // "" if unset
	probesEnabled   *bool           // nil if unset
	probesEnabledBy string          // the annotation that sets it
	virtualPort     int32           // 0 if unset
	virtualPortBy   string          // the annotation that sets it
	probesMode      mesh.ProbesMode // "" if unset
	portRange       portRange
	gateway         *bool         // nil if the pod does not say
	guarded         *bool         // nil if the pod does not say
	guardedExec     *bool         // nil if the pod does not say
	excludeInbound  []int32       // without duplicates, in the user's order
	excludeOutbound []int32       // the same
	serverFirst     []int32       // the same
	drainTime       time.Duration // 0 if unset
	lbHealthPort    int32         // 0 if unset
	lbDrainTime     time.Duration
	metricsPort     *int32 // nil if unset; 0 for none
	resources       demands
}

// knownAnnotations are the annotations with one of Sonde's or Kuma's prefixes that need no warning.
var knownAnnotations = []string{
	mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelMesh, mesh.AnnotationGateway,
	mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesMode, mesh.AnnotationVirtualProbesPort,
	mesh.AnnotationVirtualProbesPortRange, mesh.AnnotationProbeProxyPort,
	mesh.AnnotationGuardedLiveness, mesh.AnnotationGuardedExec, mesh.AnnotationLiveness,
	mesh.AnnotationDrainTime, mesh.AnnotationDrain, mesh.AnnotationLBHealthPort, mesh.AnnotationLBDrainTime,
	mesh.AnnotationMetricsPort, mesh.AnnotationSidecarCPU, mesh.AnnotationSidecarCPULimit,
	mesh.AnnotationSidecarMemory, mesh.AnnotationSidecarMemoryLimit,
	mesh.AnnotationExcludeInboundPorts, mesh.AnnotationExcludeOutboundPorts, mesh.AnnotationServerFirstPorts,
	mesh.AnnotationReachableServices, mesh.AnnotationInjectionWarnings, mesh.AnnotationControlPlaneCA,
}

// readSettings reads the settings of a pod. The error joins one error for each invalid value.
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
	if s.probesMode, err = ProbesModeOf(meta.Labels, meta.Annotations); err != nil {
		errs = append(errs, err)
	}
	read(mesh.AnnotationVirtualProbes, into(&s.probesEnabled, parseSwitch))
	read(mesh.AnnotationVirtualProbesPort, into(&s.virtualPort, mesh.ParsePort[int32]))
	s.probesEnabledBy, s.virtualPortBy = mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesPort
	read(mesh.AnnotationProbeProxyPort, func(value string) (err error) {
		warnings, err = s.readProbeProxyPort(value)
		return err
	})
	read(mesh.AnnotationEnhancedLiveness, into(&s.guarded, parseEnhancedLiveness))
	read(mesh.AnnotationGuardedLiveness, into(&s.guarded, parseSwitch)) // after OpenKruise's: it takes precedence
	read(mesh.AnnotationGuardedExec, into(&s.guardedExec, parseSwitch))
	var liveness mesh.Liveness // only checked: the control plane reads it from the pod
	read(mesh.AnnotationLiveness, into(&liveness, mesh.ParseLiveness))
	s.portRange = portRange{mesh.PortVirtualProbes, mesh.LastSparePort}
	read(mesh.AnnotationVirtualProbesPortRange, into(&s.portRange, parsePortRange))
	read(mesh.AnnotationDrainTime, into(&s.drainTime, parseDrainTime))
	read(mesh.AnnotationLBHealthPort, into(&s.lbHealthPort, mesh.ParsePort[int32]))
	s.lbDrainTime = mesh.DefaultLBDrainTime
	read(mesh.AnnotationLBDrainTime, into(&s.lbDrainTime, parseLBDrainTime))
	read(mesh.AnnotationMetricsPort, into(&s.metricsPort, parsePortOrNone))
	read(mesh.AnnotationGateway, into(&s.gateway, parseSwitch))
	read(mesh.AnnotationExcludeInboundPorts, into(&s.excludeInbound, parseInboundPorts))
	read(mesh.AnnotationExcludeOutboundPorts, into(&s.excludeOutbound, mesh.ParsePorts[int32]))
	if s.resources, err = demandsOf("", meta.Annotations); err != nil {
		errs = append(errs, err)
	}
	read(mesh.AnnotationServerFirstPorts, into(&s.serverFirst, mesh.ParsePorts[int32])) // the control plane also reads it
	return s, append(warnings, unknownAnnotations(meta)...), errors.Join(errs...)
}

// readProbeProxyPort reads the port of Kuma's application probe proxy if Sonde's own annotations do not set the port or
// mode. It always warns, since injection adds one of Sonde's annotations, so their presence says nothing.
func (s *settings) readProbeProxyPort(value string) (warnings []string, err error) {
	place := mesh.AnnotationVirtualProbesPort
	if value == "0" {
		place = mesh.AnnotationVirtualProbes + ": disabled"
		if s.probesEnabled == nil {
			s.probesEnabled, s.probesEnabledBy = new(false), mesh.AnnotationProbeProxyPort
		}
	} else {
		port, err := mesh.ParsePort[int32](value)
		if err != nil {
			return nil, errPortOrNone
		}
		if s.virtualPort == 0 {
			s.virtualPort, s.virtualPortBy = port, mesh.AnnotationProbeProxyPort
		}
	}
	return []string{fmt.Sprintf("%s: %q: Kuma's annotation is read as %s, which replaces it and takes precedence",
		annotationField(mesh.AnnotationProbeProxyPort), value, place)}, nil
}

// into returns a function that parses a value into target. An invalid value leaves target unchanged.
func into[T any](target *T, parse func(string) (T, error)) func(string) error {
	return func(value string) error {
		parsed, err := parse(value)
		if err == nil {
			*target = parsed
		}
		return err
	}
}

func annotationField(key string) string { return "metadata.annotations[" + strconv.Quote(key) + "]" }

func labelField(key string) string { return "metadata.labels[" + strconv.Quote(key) + "]" }

// meshOf returns the mesh that a label or an annotation names, "" if neither does or the name is empty.
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

// contradiction returns the error for an annotation that differs from the label with the same key.
func contradiction(key, annotation, label string) error {
	return &mesh.FieldError{
		Field: annotationField(key), Value: annotation, Allowed: fmt.Sprintf("the label with the same name is %q", label),
	}
}

// unknownAnnotations returns a warning for each annotation that has no effect.
func unknownAnnotations(meta *metav1.ObjectMeta) (warnings []string) {
	for _, key := range UnknownAnnotations(meta) {
		warnings = append(warnings, annotationField(key)+": unknown annotation, it has no effect")
	}
	return warnings
}

// UnknownAnnotations returns the annotations of a pod with one of Sonde's or Kuma's prefixes but no effect, sorted.
func UnknownAnnotations(meta *metav1.ObjectMeta) (unknown []string) {
	for _, key := range slices.Sorted(maps.Keys(meta.Annotations)) {
		ours := slices.ContainsFunc([]string{mesh.Prefix, mesh.TrafficPrefix, mesh.OwnPrefix}, func(prefix string) bool {
			return strings.HasPrefix(key, prefix)
		})
		if ours && !slices.Contains(knownAnnotations, key) {
			unknown = append(unknown, key)
		}
	}
	return unknown
}

// Errors of the parsers name the allowed values.
var (
	errPortOrNone = errors.New(mesh.AllowedPort + ", or 0 for none")
	errReadiness  = fmt.Errorf("must not contain %d: the sidecar's readiness probe needs redirection of this port", mesh.PortReadiness)
	errPortRange  = errors.New("must be two ports from 1 to 65535, separated by -, the lower first")
	errDrainTime  = errors.New(mesh.AllowedDrainTime)

	errLBDrainTime = errors.New(mesh.AllowedLBDrainTime)
)

// parseSwitch returns nil only with an error.
func parseSwitch(value string) (*bool, error) {
	on, err := mesh.ParseSwitch(value)
	if err != nil {
		return nil, err
	}
	return &on, nil
}

// parseInboundPorts accepts the same values as --exclude-inbound-ports of the init container.
func parseInboundPorts(value string) ([]int32, error) {
	ports, err := mesh.ParsePorts[int32](value)
	if err == nil && slices.Contains(ports, mesh.PortReadiness) {
		return nil, errReadiness
	}
	return ports, err
}

// portRange is a range of ports, both ends included.
type portRange struct{ first, last int32 }

func (r portRange) String() string { return number(r.first) + "-" + number(r.last) }

func parsePortRange(value string) (portRange, error) {
	first, last, _ := strings.Cut(value, "-")
	from, err := mesh.ParsePort[int32](first)
	to, errTo := mesh.ParsePort[int32](last)
	if err != nil || errTo != nil || from > to {
		return portRange{}, errPortRange
	}
	return portRange{from, to}, nil
}

// parseDrainTime accepts the same values as the agent.
func parseDrainTime(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < mesh.MinDrainTime || d > mesh.MaxDrainTime {
		return 0, errDrainTime
	}
	return d, nil
}
