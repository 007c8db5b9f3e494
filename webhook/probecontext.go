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

// probeContext is the value of mesh.AnnotationProbeContext: liveness probes before they are rewritten, in the order of the probe table.
// Source: openkruise/kruise pkg/webhook/pod/mutating/enhancedlivenessprobe_handler.go.
type probeContext []originalProbe

type originalProbe struct {
	// Name of the container.
	Name          string        `json:"name"`
	LivenessProbe *corev1.Probe `json:"livenessProbe"`
}

// maxContextCost limits what it takes to decode the annotation: costOf of a review does not look into texts.
const maxContextCost = 4 << 20

// parseProbeContext parses the annotation strictly: a field that is not known would be lost. The error names the place in it.
func parseProbeContext(text string) (probeContext, error) {
	data := []byte(text)
	if len(data) > maxAnnotations {
		return nil, fmt.Errorf("it has %d bytes: %d is the most that all annotations of a pod may have", len(data), maxAnnotations)
	}
	if cost, err := costOf(data); err != nil || cost > maxContextCost {
		return nil, errors.New("it has too many objects and values")
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
			return nil, &mesh.FieldError{Field: place + ".name", Value: o.Name, Allowed: fmt.Sprintf("must be unique, [%d] has it too", first)}
		case o.LivenessProbe == nil:
			return nil, &mesh.FieldError{Field: place + ".livenessProbe", Allowed: "must be there"}
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

// byContainer returns the probes by the names of their containers.
func (c probeContext) byContainer() map[string]*corev1.Probe {
	probes := map[string]*corev1.Probe{}
	for _, o := range c {
		probes[o.Name] = o.LivenessProbe
	}
	return probes
}

// readProbeContext reads the annotation, and gives each container that has no liveness probe the one that it has there: OpenKruise's webhook
// has taken it away, or the user wrote it there alone.
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
	if in.earlier == nil { // else the container was there when the annotation was written
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

// withProbes returns a list of containers in which those without a liveness probe have that of the annotation.
func (in *injection) withProbes(list string, containers []corev1.Container, probes map[string]*corev1.Probe) []corev1.Container {
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

// originals returns the liveness probes as they were before they were rewritten. What the annotation has stays as it is written there, if it
// is the same: with names of ports, and without defaults that the API server has set since.
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

// original returns a probe as it was before it was rewritten, with numbers for names of ports. Only what an earlier injection has rewritten is
// taken from the probe table.
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

// sameProbe reports whether two probes of a container do the same.
func sameProbe(c *corev1.Container, a, b *corev1.Probe) bool {
	return apiequality.Semantic.DeepEqual(explicit(c, a), explicit(c, b))
}

// explicit returns a copy of a probe with numbers for names of ports, and with the API server's defaults.
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
