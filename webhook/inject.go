// Package webhook injects the sidecar into pods, and rewrites their probes and hooks so that the agent answers them.
package webhook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	annotationDefaultContainer = "kubectl.kubernetes.io/default-container"
	meshFlag                   = "--mesh="
)

// Inject returns a copy of a pod with the containers kuma-init and kuma-sidecar and their volumes, whose probes and hooks
// ask the agent. The originals are in the probe table, the variable KUMA_DATAPLANE_PROBES of kuma-sidecar. pod is not
// modified.
//
// A probe or hook that the agent cannot answer is left as it is, with a warning that says why. A pod that must not or cannot
// have a sidecar is returned unchanged, with a warning. A pod that has a sidecar keeps it, and only probes and hooks that
// were added since are rewritten, so injecting twice changes nothing. The error says what is wrong with the pod or with the
// options.
func Inject(pod *corev1.Pod, o Options) (*corev1.Pod, []string, error) {
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, nil, fmt.Errorf("encode pod: %w", err)
	}
	document, warnings, err := InjectJSON(document, o)
	if err != nil {
		return nil, warnings, err
	}
	injected, err := DecodePod(document)
	return injected, warnings, err
}

// Explain returns what Inject decides about each probe and hook, in the order of the probe table, and the virtual port, 0
// if the pod has none.
func Explain(pod *corev1.Pod, o Options) (decisions []Decision, port int32, err error) {
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, 0, fmt.Errorf("encode pod: %w", err)
	}
	return ExplainJSON(document, o)
}

// ExplainJSON is Explain for a pod, or a pod template, as a JSON document, in which there may be fields that our types do not have.
func ExplainJSON(document []byte, o Options) (decisions []Decision, port int32, err error) {
	if err := o.complete(); err != nil {
		return nil, 0, err
	}
	d, err := readPod(document)
	if err != nil {
		return nil, 0, err
	}
	in := &injection{options: &o}
	if in.pod, in.unknown, err = d.pod(); err != nil {
		return nil, 0, err
	}
	if err := in.prepare(); err != nil {
		return nil, 0, err
	}
	if in.selection.Injected {
		decisions, err = in.decideAll()
		for i, h := range in.handlers[:len(decisions)] {
			decisions[i].Written = h.written()
			if p := in.rewritten(h); p != nil {
				decisions[i].Written = p.Written(":" + number(p.Port()))
			}
		}
		return decisions, in.port, err
	}
	for _, h := range in.handlers {
		decisions = append(decisions, Decision{
			Container: h.container.Name, Type: h.kind, Written: h.written(), Why: strings.Join(in.warnings, "; "),
		})
	}
	return decisions, 0, nil
}

// injection is the state of the injection of one pod.
type injection struct {
	options   *Options
	namespace *Namespace  // nil if it is not known
	pod       *corev1.Pod // as it was read
	patch     patch       // what is to be changed in it
	unknown   unknownFields
	handlers  []handler
	selection Selection
	settings  settings
	// ofNamespace is what the namespace asks for the sidecar, and resources what it gets.
	ofNamespace demands
	resources   corev1.ResourceRequirements
	mesh        string
	earlier     *earlier // nil for a pod without a sidecar
	form        Form
	used        map[int32]string // the pod's ports, and what uses them
	mode        mesh.ProbesMode
	enabled     bool            // probes are answered in the applications' place
	guarded     bool            // liveness probes that fail wait until a restart is granted
	context     probeContext    // the liveness probes in the annotation of a guarded pod
	port        int32           // the virtual port; 0 if there is none
	metricsPort int32           // the port for Prometheus; 0 if there is none
	table       mesh.ProbeTable // of the probes and hooks that are answered in the applications' place
	warnings    []string

	encodedTable string
}

// inject finds out what is to be changed in a pod, which it only reads. The options are complete. After an error the patch is not complete.
func inject(pod *corev1.Pod, unknown unknownFields, ns *Namespace, o *Options) (*injection, error) {
	in := &injection{options: o, namespace: ns, pod: pod, unknown: unknown}
	if err := in.prepare(); err != nil {
		return in, err
	}
	if !in.selection.Injected {
		if ns != nil { // a pod in a file stays as it is
			in.write(nil, in.recordWarnings(nil))
		}
		return in, nil
	}
	decisions, err := in.decideAll()
	if err != nil {
		return in, err
	}
	for i, d := range decisions {
		if why := d.warning(); why != "" {
			in.warn("%s: %s", in.handlers[i].field(), why)
		}
		if d.Probe == nil {
			continue
		}
		if in.rewritten(in.handlers[i]) == nil {
			in.rewrite(in.handlers[i], *d.Probe)
		} else {
			in.removeNewField(in.handlers[i])
		}
		in.setNumbers(in.handlers[i], d)
	}
	if in.earlier == nil {
		in.addSidecar()
	} else {
		in.setTable()
		if in.perPort() {
			in.setArguments()
		}
		in.setGuarded()
		in.orderContainers()
	}
	in.warnOtherMesh()
	in.warnSharedUser()
	in.warnPlaintext()
	if ns != nil {
		if why := ns.podSecurity(); why != "" {
			in.warn("%s", why)
		}
	}
	return in, in.setMetadata()
}

// prepare reads and checks the pod. The error joins all that is wrong.
func (in *injection) prepare() (err error) {
	in.handlers = handlersOf(in.pod, in.unknown)
	if in.selection, err = in.options.selectPod(in.namespace, in.pod); err != nil {
		return err
	}
	if s := in.selection; !s.Injected {
		if s.Warn || s.Why != "" && in.namespace == nil {
			in.warn("%s", s.Why+notInjected)
		}
		return nil
	}
	var errs []error
	if in.settings, in.warnings, err = readSettings(&in.pod.ObjectMeta); err != nil {
		errs = append(errs, err)
	}
	if err := in.readResources(); err != nil {
		errs = append(errs, err)
	}
	if err := checkNames(in.pod); err != nil {
		errs = append(errs, err)
	}
	if in.earlier, err = findEarlier(in.pod); err != nil {
		return errors.Join(append(errs, err)...) // the rest depends on it
	}
	in.form = in.options.Sidecar
	if in.earlier != nil {
		in.form = in.earlier.form
	}
	if err := in.chooseMesh(); err != nil {
		errs = append(errs, err)
	}
	if err := in.chooseGuarded(); err != nil {
		errs = append(errs, err)
	}
	if err := in.chooseMode(); err != nil {
		return errors.Join(append(errs, err)...) // the ports depend on it
	}
	return errors.Join(append(errs, in.preparePorts())...)
}

// chooseMesh takes the mesh that the pod names, else that of its namespace, else the default. A pod that has a sidecar keeps its mesh.
func (in *injection) chooseMesh() (err error) {
	in.mesh = in.settings.mesh
	if in.earlier != nil && in.earlier.mesh != "" {
		if in.mesh != "" && in.mesh != in.earlier.mesh {
			return fmt.Errorf("%s: %q: %s has %s%s already", mesh.LabelMesh, in.mesh, mesh.ContainerSidecar, meshFlag, in.earlier.mesh)
		}
		in.mesh = in.earlier.mesh
	}
	if in.mesh == "" && in.namespace != nil {
		in.mesh, err = in.namespace.mesh()
	}
	in.mesh = cmp.Or(in.mesh, in.options.Mesh)
	if err == nil && in.namespace != nil {
		err = mesh.CheckMeshOf(in.namespace.Name, in.namespace.Annotations, in.mesh)
	}
	return err
}

// warnPlaintext warns of ports that the mesh does not protect although it seems to.
func (in *injection) warnPlaintext() {
	if ports := in.settings.excludeInbound; len(ports) > 0 && in.options.strict != nil && in.options.strict(in.mesh) {
		in.warn("%s: %q: connections to these ports are not redirected, so that any client may make them in plaintext, although mesh %q is STRICT",
			annotationField(mesh.AnnotationExcludeInboundPorts), joinPorts(ports), in.mesh)
	}
}

// warn adds a warning. It is one line, whatever strings of the pod are in it.
func (in *injection) warn(format string, args ...any) {
	words := strings.FieldsFunc(fmt.Sprintf(format, args...), unicode.IsControl)
	in.warnings = append(in.warnings, strings.Join(words, " "))
}

// maxRecorded limits the annotation with the warnings, in bytes: all annotations of an object may have 256 KiB.
const maxRecorded = 32 << 10

// recordedWarnings returns the warnings, and before them those of earlier injections, one per line: no user sees what an admission
// webhook tells a controller that makes pods. A second injection does not find again what only the first one decides.
func (in *injection) recordedWarnings() string {
	recorded := in.pod.Annotations[mesh.AnnotationInjectionWarnings]
	var lines []string
	if recorded != "" {
		lines = strings.Split(recorded, "\n")
	}
	for _, warning := range in.warnings {
		if slices.Contains(lines, warning) {
			continue
		}
		if len(recorded)+len(warning) > maxRecorded {
			if warning = "there are more warnings than are recorded"; slices.Contains(lines, warning) {
				continue
			}
		}
		lines = append(lines, warning)
		recorded = strings.Join(lines, "\n")
	}
	return recorded
}

// checkNames returns an error if containers have no names or the same name. The API server would refuse such a pod, too.
func checkNames(pod *corev1.Pod) error {
	names := map[string]bool{}
	var errs []error
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			switch {
			case c.Name == "":
				errs = append(errs, errors.New("spec.containers: there is one without a name"))
			case names[c.Name]:
				errs = append(errs, fmt.Errorf("containers[%s]: two containers have this name", c.Name))
			}
			names[c.Name] = true
		}
	}
	if len(pod.Spec.Containers) == 0 {
		errs = append(errs, errors.New("spec.containers: there is none"))
	}
	return errors.Join(errs...)
}

// addSidecar adds our containers and volumes. A native sidecar, with kuma-init before it, comes before all other init containers,
// so that all of them have network and probes. An ordinary one is the first of the containers; kuma-init is then the last init
// container, since no container has network between the two.
func (in *injection) addSidecar() {
	spec := &in.pod.Spec
	in.chooseResources()
	first, sidecar, volumes := in.initContainer(), in.sidecar(), in.volumes()
	in.nameControlPlane()
	if in.form == Native {
		insert(&in.patch, pathInitContainers, len(spec.InitContainers), "0", first, sidecar)
	} else {
		insert(&in.patch, pathInitContainers, len(spec.InitContainers), "-", first)
		insert(&in.patch, pathContainers, len(spec.Containers), "0", sidecar)
	}
	insert(&in.patch, pathVolumes, len(spec.Volumes), "-", volumes...)
	if in.form == Container && spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyAlways {
		in.warn("spec.restartPolicy: %s: this pod never completes, as an ordinary container %s runs for ever: the native form ends with the others",
			spec.RestartPolicy, mesh.ContainerSidecar)
	}
}

// setMetadata writes the mesh into a label, by which the control plane selects pods, and what else was decided into annotations,
// unless the user has set them.
func (in *injection) setMetadata() error {
	meta := &in.pod.ObjectMeta
	labels, annotations := map[string]string{}, map[string]string{}
	if meta.Labels[mesh.LabelMesh] == "" {
		labels[mesh.LabelMesh] = in.mesh
	}
	if in.earlier == nil {
		in.annotate(annotations)
	} else if in.port != in.earlier.port {
		annotations[mesh.AnnotationVirtualProbesPort] = number(in.port)
	}
	if in.guarded {
		if err := in.recordGuarded(annotations); err != nil {
			return err
		}
	}
	annotations = in.recordWarnings(annotations)
	in.write(labels, annotations)
	return in.checkAnnotations(annotations)
}

// recordWarnings adds the annotation with the warnings to others, if it changes.
func (in *injection) recordWarnings(annotations map[string]string) map[string]string {
	if recorded := in.recordedWarnings(); recorded != in.pod.Annotations[mesh.AnnotationInjectionWarnings] {
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[mesh.AnnotationInjectionWarnings] = recorded
	}
	return annotations
}

// write sets labels and annotations.
func (in *injection) write(labels, annotations map[string]string) {
	in.patch.set("/metadata/labels", in.pod.Labels, labels)
	in.patch.set("/metadata/annotations", in.pod.Annotations, annotations)
}

func (in *injection) annotate(annotations map[string]string) {
	set := func(key, value string) {
		if _, ok := in.pod.Annotations[key]; !ok {
			annotations[key] = value
		}
	}
	if in.enabled {
		set(mesh.AnnotationVirtualProbes, "enabled")
		set(mesh.AnnotationVirtualProbesMode, string(in.mode))
	}
	if in.port != 0 {
		set(mesh.AnnotationVirtualProbesPort, number(in.port))
	}
	in.annotateMetrics(set)
	if ca := in.options.ControlPlaneCA; ca != "" && in.pod.Annotations[mesh.AnnotationControlPlaneCA] != ca {
		annotations[mesh.AnnotationControlPlaneCA] = ca
	}
	for _, c := range in.pod.Spec.Containers {
		if !isOurs(c.Name) {
			set(annotationDefaultContainer, c.Name)
			break
		}
	}
}
