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

// markGuarded marks the entry of the probe table for a liveness probe of a guarded pod, if the agent can discard its failures, and no other. If the entry
// was marked before, it alone has the user's threshold.
func (in *injection) markGuarded(h handler, p *mesh.Probe) {
	threshold := p.FailureThreshold
	p.Guarded, p.FailureThreshold, p.PeriodSeconds = false, 0, 0
	if in.guarded && h.kind == mesh.ProbeLiveness && in.undiscarded(p) == "" {
		p.Guarded, p.FailureThreshold, p.PeriodSeconds = true, cmp.Or(threshold, h.probe.FailureThreshold), h.probe.PeriodSeconds
		p.SetDefaults()
	}
}

// sameRelease reports whether the agent of the pod is of this release. One of another release that the pod has already may not count the failures of guarded
// probes, and its kuma-init may not know flags.
func (in *injection) sameRelease() bool {
	return in.earlier == nil || in.earlier.image == in.options.Image
}

// kubeletOf returns what the kubelet gets of a handler, nothing of a hook.
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

// kubeletAgain returns what the kubelet gets of a probe that an earlier injection has rewritten: what it has, unless the guard is new or dropped. Where it
// is dropped the user's threshold comes back.
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

// guardedPortFlag of kuma-init has the port of guarded probes, which is the virtual port.
const guardedPortFlag = "--guarded-port="

// hasGuarded reports whether a probe of the pod is guarded.
func (in *injection) hasGuarded() bool {
	return slices.ContainsFunc(in.table, func(p mesh.Probe) bool { return p.Guarded })
}

// alive asks whether the agent answers. While it does not, nothing restarts the containers of guarded probes, whether they fail or not: it is restarted
// after one and a half minutes of silence, in which it may just have had no processor.
func (in *injection) alive() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: mesh.PathAlive, Port: intstr.FromInt32(in.port), HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: mesh.ProbeAlive}},
		}},
		PeriodSeconds: 30, TimeoutSeconds: 30, FailureThreshold: 3,
		TerminationGracePeriodSeconds: new(int64(10)), // what hangs does not drain
	}
}

// setGuarded adds to an earlier injection what the sidecar of a guarded pod has, or removes it.
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

// undiscarded returns why the kubelet would count each failure of a probe that is answered in the application's place, "" if it need not.
func (in *injection) undiscarded(p *mesh.Probe) string {
	switch {
	case !in.perPort() || !p.WantsOwnPort():
		return ""
	case p.Protocol() == mesh.ProtocolTCP:
		return "the kernel answers tcpSocket probes in the per-port mode" + unifiedGuards
	}
	return "the kubelet discards no answer to a grpc probe, which is what it asks in the per-port mode" + unifiedGuards
}

// What to do about a probe that is not guarded.
const (
	unifiedGuards = ": with " + mesh.AnnotationVirtualProbesMode + ": unified it would be guarded"
	networkGuards = ", where the agent cannot ask: an httpGet, tcpSocket or grpc probe would be guarded"
)

// unguarded returns Decision.Unguarded.
func (in *injection) unguarded(d Decision) string {
	switch {
	case !in.guarded || d.Type != mesh.ProbeLiveness:
		return ""
	case d.Why == runsInContainer:
		return d.Why + networkGuards
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
