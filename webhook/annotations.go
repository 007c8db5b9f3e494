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
	mesh            string          // "" if the pod names none
	probesEnabled   *bool           // nil if the pod does not say
	probesEnabledBy string          // the annotation that says it
	virtualPort     int32           // 0 if the pod asks for none
	virtualPortBy   string          // the annotation that asks for it
	probesMode      mesh.ProbesMode // "" if the pod names none
	portRange       portRange
	guarded         *bool         // nil if the pod does not say
	excludeInbound  []int32       // without duplicates, in the user's order
	excludeOutbound []int32       // the same
	drainTime       time.Duration // 0 if the pod asks for none
	lbHealthPort    int32         // 0 if the pod asks for none
	lbDrainTime     time.Duration
	metricsPort     *int32 // nil if the pod does not say; 0 for none
	resources       demands
}

// knownAnnotations are the annotations of a pod, with one of our prefixes, that are not worth a warning.
var knownAnnotations = []string{
	mesh.LabelInjection, mesh.LabelOwnInjection, mesh.LabelMesh,
	mesh.AnnotationVirtualProbes, mesh.AnnotationVirtualProbesMode, mesh.AnnotationVirtualProbesPort, mesh.AnnotationVirtualProbesPortRange,
	mesh.AnnotationProbeProxyPort, mesh.AnnotationGuardedLiveness, mesh.AnnotationLiveness,
	mesh.AnnotationDrainTime, mesh.AnnotationDrain, mesh.AnnotationLBHealthPort, mesh.AnnotationLBDrainTime, mesh.AnnotationMetricsPort,
	mesh.AnnotationSidecarCPU, mesh.AnnotationSidecarCPULimit, mesh.AnnotationSidecarMemory, mesh.AnnotationSidecarMemoryLimit,
	mesh.AnnotationExcludeInboundPorts, mesh.AnnotationExcludeOutboundPorts,
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
	var liveness mesh.Liveness                                          // only checked: the control plane reads it from the pod
	read(mesh.AnnotationLiveness, into(&liveness, mesh.ParseLiveness))
	s.portRange = portRange{mesh.PortVirtualProbes, mesh.LastSparePort}
	read(mesh.AnnotationVirtualProbesPortRange, into(&s.portRange, parsePortRange))
	read(mesh.AnnotationDrainTime, into(&s.drainTime, parseDrainTime))
	read(mesh.AnnotationLBHealthPort, into(&s.lbHealthPort, mesh.ParsePort[int32]))
	s.lbDrainTime = mesh.DefaultLBDrainTime
	read(mesh.AnnotationLBDrainTime, into(&s.lbDrainTime, parseLBDrainTime))
	read(mesh.AnnotationMetricsPort, into(&s.metricsPort, parsePortOrNone))
	read(mesh.AnnotationExcludeInboundPorts, into(&s.excludeInbound, parseInboundPorts))
	read(mesh.AnnotationExcludeOutboundPorts, into(&s.excludeOutbound, mesh.ParsePorts[int32]))
	if s.resources, err = demandsOf("", meta.Annotations); err != nil {
		errs = append(errs, err)
	}
	var serverFirst []int32 // only checked: the control plane reads it from the pod
	read(mesh.AnnotationServerFirstPorts, into(&serverFirst, mesh.ParsePorts[int32]))
	return s, append(warnings, unknownAnnotations(meta)...), errors.Join(errs...)
}

// readProbeProxyPort reads the port of Kuma's application probe proxy for what the pod does not say in Sonde's own annotations, which
// are read before. The warning is the same whether they are there or not: injection adds one of them.
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
	return []string{fmt.Sprintf("%s: %q: Kuma's annotation is read as %s, which takes its place and precedence",
		annotationField(mesh.AnnotationProbeProxyPort), value, place)}, nil
}

// into returns a function that parses a value into target, which stays as it is if the value is wrong.
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

// unknownAnnotations returns a warning for each annotation that has no effect.
func unknownAnnotations(meta *metav1.ObjectMeta) (warnings []string) {
	for _, key := range UnknownAnnotations(meta) {
		warnings = append(warnings, annotationField(key)+": Sonde does not know this annotation, it has no effect")
	}
	return warnings
}

// UnknownAnnotations returns the annotations of a pod that have one of our prefixes and no effect, sorted.
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

// Errors of the parsers: each says what is allowed.
var (
	errPortOrNone = errors.New(mesh.AllowedPort + ", or 0 for none")
	errReadiness  = fmt.Errorf("must not have %d: only redirected connections reach the readiness of the sidecar", mesh.PortReadiness)
	errPortRange  = errors.New("must be two ports from 1 to 65535 with a - between them, the lower first")
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

// parseInboundPorts accepts what the init container accepts as --exclude-inbound-ports.
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

// parseDrainTime accepts what the agent accepts.
func parseDrainTime(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < mesh.MinDrainTime || d > mesh.MaxDrainTime {
		return 0, errDrainTime
	}
	return d, nil
}
