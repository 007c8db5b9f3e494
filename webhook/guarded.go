package webhook

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// chooseGuarded decides whether the liveness probes and the exec probes of the pod are guarded. In a guarded pod,
// containers get back the probes that only mesh.AnnotationProbeContext has.
func (in *injection) chooseGuarded() error {
	asked, err := in.switchOf(in.settings.guarded, mesh.AnnotationGuardedLiveness)
	exec, execErr := in.switchOf(in.settings.guardedExec, mesh.AnnotationGuardedExec)
	if err := errors.Join(err, execErr); err != nil {
		return err
	}
	if in.guarded = asked != nil && *asked; !in.guarded {
		if in.settings.guardedExec != nil && *in.settings.guardedExec {
			in.warn("%s: it has no effect without %s: enabled", annotationField(mesh.AnnotationGuardedExec), mesh.AnnotationGuardedLiveness)
		}
		return nil
	}
	in.guardedExec = in.ofKruise()
	if exec != nil {
		in.guardedExec = *exec
	}
	return in.readProbeContext()
}

// switchOf returns what the pod says, else what its namespace does in an annotation, nil if neither does.
func (in *injection) switchOf(ofPod *bool, annotation string) (*bool, error) {
	if ofPod != nil || in.namespace == nil {
		return ofPod, nil
	}
	value, ok := in.namespace.Annotations[annotation]
	if !ok {
		return nil, nil
	}
	asked, err := parseSwitch(value)
	if err != nil {
		return nil, &mesh.FieldError{Field: "namespace " + in.namespace.Name + ": " + annotationField(annotation), Value: value, Err: err}
	}
	return asked, nil
}

var errEnhancedLiveness = errors.New("must be true or false")

// parseEnhancedLiveness parses OpenKruise's annotation. OpenKruise itself treats any value other than true as false.
func parseEnhancedLiveness(value string) (*bool, error) {
	if value != "true" && value != "false" {
		return nil, errEnhancedLiveness
	}
	return new(value == "true"), nil
}

// markGuarded marks a liveness probe of a guarded pod in the probe table, if the agent can hold back its failures, and
// sets a long period of other probes. If the entry was already marked, only the entry has the user's threshold.
func (in *injection) markGuarded(h handler, p *mesh.Probe) {
	threshold := p.FailureThreshold
	p.Guarded, p.FailureThreshold, p.PeriodSeconds = false, 0, 0
	if in.guarded && h.kind == mesh.ProbeLiveness && in.undiscarded(p) == "" {
		p.Guarded, p.PeriodSeconds = true, h.probe.PeriodSeconds
		p.FailureThreshold = cmp.Or(threshold, h.probe.FailureThreshold)
		p.SetDefaults()
	} else if h.probe != nil && h.probe.PeriodSeconds > mesh.DefaultPeriodSeconds {
		p.PeriodSeconds = h.probe.PeriodSeconds
	}
}

// sameRelease reports whether the pod's agent has this release. An agent of another release may not count failures of
// guarded probes, and its kuma-init may lack flags.
func (in *injection) sameRelease() bool {
	return in.earlier == nil || in.earlier.image == in.options.Image
}

// kubeletOf returns the kubelet's values for a handler, empty for a hook.
func (in *injection) kubeletOf(h handler, p mesh.Probe) Kubelet {
	if h.probe == nil {
		return Kubelet{}
	}
	if p.Guarded && !in.sameRelease() {
		threshold := p.FailureThreshold
		p.Guarded = false
		return Kubelet{TimeoutSeconds: KubeletOf(p).TimeoutSeconds, FailureThreshold: threshold}
	}
	return KubeletOf(p)
}

// kubeletAgain returns the kubelet's values for a probe that an earlier injection has rewritten. They remain unless the
// probe becomes guarded or unguarded; an unguarded probe gets back the user's threshold.
func (in *injection) kubeletAgain(h handler, before *mesh.Probe, now mesh.Probe) Kubelet {
	k := in.kubeletOf(h, now)
	switch {
	case h.probe == nil:
	case before.Guarded && !now.Guarded:
		k.FailureThreshold = before.FailureThreshold
	case before.Guarded == now.Guarded:
		k.TimeoutSeconds = h.probe.TimeoutSeconds
		if now.Guarded {
			k.FailureThreshold = h.probe.FailureThreshold
		}
	}
	return k
}

// guardedPortFlag is kuma-init's flag for the port of guarded probes, which is the virtual port.
const guardedPortFlag = "--guarded-port="

// hasGuarded reports whether a probe of the pod is guarded.
func (in *injection) hasGuarded() bool {
	return slices.ContainsFunc(in.table, func(p mesh.Probe) bool { return p.Guarded })
}

// alive returns the liveness probe of the sidecar. While the agent does not answer, no guarded container can restart,
// so the kubelet restarts the agent after one and a half minutes, long enough for a temporary lack of CPU.
func (in *injection) alive() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: mesh.PathAlive, Port: intstr.FromInt32(in.port),
			HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: mesh.ProbeAlive}},
		}},
		PeriodSeconds: 30, TimeoutSeconds: 30, FailureThreshold: 3,
		TerminationGracePeriodSeconds: new(int64(10)), // an agent that hangs does not drain
	}
}

// setGuarded adds the liveness probe and arguments of a guarded pod's sidecar to an earlier injection, or removes them.
func (in *injection) setGuarded() {
	if !in.sameRelease() {
		return
	}
	in.setAlive()
	in.setGuardedPort()
}

func (in *injection) setAlive() {
	list, containers := in.sidecarList()
	at := podspec.Index(containers, mesh.ContainerSidecar)
	path, before := fmt.Sprintf("%s/%d/livenessProbe", list, at), containers[at].LivenessProbe
	switch isOurs := before != nil && before.HTTPGet != nil && before.HTTPGet.Port == intstr.FromInt32(in.port); {
	case in.hasGuarded() && !isOurs:
		in.patch.add(path, in.alive())
	case !in.hasGuarded() && before != nil:
		in.patch.remove(path)
	}
}

func (in *injection) setGuardedPort() {
	first := podspec.Index(in.pod.Spec.InitContainers, mesh.ContainerInit)
	if first < 0 {
		return
	}
	args := in.pod.Spec.InitContainers[first].Args
	i := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, guardedPortFlag) })
	path := fmt.Sprintf("%s/%d/args/", pathInitContainers, first)
	switch want := guardedPortFlag + number(in.port); {
	case !in.hasGuarded() && i >= 0:
		in.patch.remove(path + strconv.Itoa(i))
	case in.hasGuarded() && i < 0:
		in.patch.add(path+"-", want)
	case in.hasGuarded() && args[i] != want:
		in.patch.replace(path+strconv.Itoa(i), want)
	}
}

// undiscarded returns why the agent cannot hold back failures of a probe that it answers, "" if it can.
func (in *injection) undiscarded(p *mesh.Probe) string {
	switch {
	case !in.perPort() || !p.WantsOwnPort():
		return ""
	case p.Protocol() == mesh.ProtocolTCP:
		return "in per-port mode the kernel answers tcpSocket probes" + unifiedGuards
	}
	return "in per-port mode the kubelet sends grpc probes, for which it discards no answer" + unifiedGuards
}

// Advice about a probe that is not guarded.
const (
	unifiedGuards = ": with " + mesh.AnnotationVirtualProbesMode + ": unified it would be guarded"
	optInGuards   = ": with " + mesh.AnnotationGuardedExec + ": enabled it would be guarded"
)

// unguarded returns Decision.Unguarded.
func (in *injection) unguarded(d Decision) string {
	switch {
	case !in.guarded || d.Type != mesh.ProbeLiveness:
		return ""
	case d.Why == runsInContainer:
		return d.Why + optInGuards
	case d.Probe == nil:
		return d.Why
	}
	return in.undiscarded(d.Probe)
}

// recordGuarded adds the annotations of a guarded pod: that it and its exec probes are guarded, by whichever
// annotation, and its liveness probes.
func (in *injection) recordGuarded(annotations map[string]string) error {
	if _, ok := in.pod.Annotations[mesh.AnnotationGuardedLiveness]; !ok {
		annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	}
	isExec := func(h handler) bool { return h.kind == mesh.ProbeLiveness && h.asks.Exec != nil }
	if in.guardedExec && in.settings.guardedExec == nil && slices.ContainsFunc(in.handlers, isExec) {
		annotations[mesh.AnnotationGuardedExec] = "enabled"
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
	if text != textBefore { // otherwise keep its formatting
		annotations[mesh.AnnotationProbeContext] = text
	}
	return nil
}

// maxAnnotations is the API server's limit for the keys and values of all annotations of an object, in bytes.
// Source: k8s.io/apimachinery pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
const maxAnnotations = 256 << 10

// checkAnnotations returns an error if mesh.AnnotationProbeContext and the other annotations of a guarded pod exceed
// maxAnnotations.
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
		"the pod's liveness probes take %d bytes here, and its annotations would have %d: must be at most %d",
		len(all[mesh.AnnotationProbeContext]), size, maxAnnotations)}
}
