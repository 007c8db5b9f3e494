package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// probeContext is the value of mesh.AnnotationProbeContext: the original liveness probes, in the order of the probe
// table.
// Source: openkruise/kruise pkg/webhook/pod/mutating/enhancedlivenessprobe_handler.go.
type probeContext []originalProbe

type originalProbe struct {
	// Name is the container's name.
	Name          string        `json:"name"`
	LivenessProbe *corev1.Probe `json:"livenessProbe"`
}

// maxContextCost limits the memory for decoding the annotation, which a review's costOf counts only as a string.
const maxContextCost = 4 << 20

// parseProbeContext parses the annotation strictly, since unknown fields would be lost. The error names the position.
func parseProbeContext(text string) (probeContext, error) {
	data := []byte(text)
	if len(data) > maxAnnotations {
		return nil, fmt.Errorf("has %d bytes: all annotations of a pod must have at most %d", len(data), maxAnnotations)
	}
	if cost, err := costOf(data); err != nil || cost > maxContextCost {
		return nil, errors.New("has too many objects and values")
	}
	var c probeContext
	unknown, err := kjson.UnmarshalStrict(data, &c)
	if err != nil {
		return nil, mesh.ExplainJSON("", data, &c)
	}
	if len(unknown) > 0 {
		return nil, unknown[0]
	}
	places := map[string]int{}
	for i, o := range c {
		place := "[" + strconv.Itoa(i) + "]"
		first, again := places[o.Name]
		switch {
		case o.Name == "":
			return nil, &mesh.FieldError{Field: place + ".name", Allowed: "must be the name of a container"}
		case again:
			return nil, &mesh.FieldError{
				Field: place + ".name", Value: o.Name, Allowed: fmt.Sprintf("must be unique, [%d] is the same", first),
			}
		case o.LivenessProbe == nil:
			return nil, &mesh.FieldError{Field: place + ".livenessProbe", Allowed: "is missing"}
		}
		places[o.Name] = i
	}
	return c, nil
}

func (c probeContext) encode() (string, error) {
	if c == nil {
		c = probeContext{}
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(c); err != nil {
		return "", fmt.Errorf("encode %s: %w", mesh.AnnotationProbeContext, err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// byContainer returns the probes by container name.
func (c probeContext) byContainer() map[string]*corev1.Probe {
	probes := map[string]*corev1.Probe{}
	for _, o := range c {
		probes[o.Name] = o.LivenessProbe
	}
	return probes
}

// readProbeContext reads the annotation, and restores the probe of each container without a liveness probe:
// OpenKruise's webhook has removed the probe, or the user wrote it only into the annotation.
func (in *injection) readProbeContext() (err error) {
	text, ok := in.pod.Annotations[mesh.AnnotationProbeContext]
	if !ok {
		return nil
	}
	wrong := func(err error) error {
		return &mesh.FieldError{Field: annotationField(mesh.AnnotationProbeContext), Err: err}
	}
	if in.context, err = parseProbeContext(text); err != nil {
		return wrong(err)
	}
	if in.earlier == nil { // otherwise the container existed when the annotation was written
		var missing []string
		for _, o := range in.context {
			if podspec.Container(&in.pod.Spec, o.Name) == nil {
				missing = append(missing, strconv.Quote(o.Name))
			}
		}
		if len(missing) > 0 {
			return wrong(errors.New("the pod has no container " + mesh.Few(missing)))
		}
	}
	probes := in.context.byContainer()
	pod := *in.pod
	pod.Spec.InitContainers = in.withProbes(pathInitContainers, pod.Spec.InitContainers, probes)
	pod.Spec.Containers = in.withProbes(pathContainers, pod.Spec.Containers, probes)
	in.pod, in.handlers = &pod, handlersOf(&pod, in.unknown)
	return nil
}

// withProbes returns containers in which those without a liveness probe have the probe of the annotation.
func (in *injection) withProbes(
	list string, containers []corev1.Container, probes map[string]*corev1.Probe,
) []corev1.Container {
	containers = slices.Clone(containers)
	for i := range containers {
		c := &containers[i]
		if p := probes[c.Name]; p != nil && c.LivenessProbe == nil {
			c.LivenessProbe = p
			in.patch.add(list+"/"+strconv.Itoa(i)+"/livenessProbe", p)
		}
	}
	return containers
}

// originals returns the liveness probes before they were rewritten. It prefers the annotation's equivalent probes,
// which have port names, and no defaults of the API server.
func (in *injection) originals() (c probeContext) {
	written := in.context.byContainer()
	for _, h := range in.handlers {
		if h.kind != mesh.ProbeLiveness {
			continue
		}
		probe := in.original(h)
		if w := written[h.container.Name]; w != nil && sameProbe(h.container, w, probe) {
			probe = w
		}
		c = append(c, originalProbe{Name: h.container.Name, LivenessProbe: probe})
	}
	return c
}

// original returns a probe before an earlier injection rewrote it. The action, with port numbers instead of names, the
// timeout and, if guarded, the failure threshold come from the probe table. It returns any other probe unchanged.
func (in *injection) original(h handler) *corev1.Probe {
	entry := in.rewritten(h)
	if entry == nil {
		return h.probe
	}
	probe := *h.probe
	probe.ProbeHandler, probe.TimeoutSeconds = HandlerOf(*entry), entry.TimeoutSeconds
	if entry.Guarded {
		probe.FailureThreshold = entry.FailureThreshold
	}
	return &probe
}

// sameProbe reports whether two probes of a container are equivalent.
func sameProbe(c *corev1.Container, a, b *corev1.Probe) bool {
	return apiequality.Semantic.DeepEqual(explicit(c, a), explicit(c, b))
}

// explicit returns a copy of a probe with port numbers instead of names, and with the API server's defaults.
// Source: kubernetes pkg/apis/core/v1/defaults.go.
func explicit(c *corev1.Container, probe *corev1.Probe) *corev1.Probe {
	p := probe.DeepCopy()
	p.TimeoutSeconds, p.PeriodSeconds = cmp.Or(p.TimeoutSeconds, 1), cmp.Or(p.PeriodSeconds, 10)
	p.SuccessThreshold, p.FailureThreshold = cmp.Or(p.SuccessThreshold, 1), cmp.Or(p.FailureThreshold, 3)
	number := func(target *intstr.IntOrString) {
		if port, why := (handler{container: c, action: action{target: *target}}).port(); why == "" {
			*target = intstr.FromInt32(port)
		}
	}
	if get := p.HTTPGet; get != nil {
		get.Path, get.Scheme = cmp.Or(get.Path, "/"), cmp.Or(get.Scheme, corev1.URISchemeHTTP)
		number(&get.Port)
	}
	if p.TCPSocket != nil {
		number(&p.TCPSocket.Port)
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new("")
	}
	return p
}
