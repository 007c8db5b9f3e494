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

// Inject returns a copy of a pod with the containers kuma-init and kuma-sidecar and their volumes, whose probes and
// hooks call the agent. The originals are in the probe table, the variable KUMA_DATAPLANE_PROBES of kuma-sidecar. pod
// is not modified.
//
// Inject warns of a probe or hook that the agent cannot answer, and does not change it. It returns a pod that must not
// or cannot have a sidecar unchanged, with a warning. A pod with a sidecar keeps it, and Inject rewrites only new
// probes and hooks, so a second injection changes nothing. It returns an error for an invalid pod or invalid options.
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

// Explain returns the decisions of Inject about each probe and hook, in the order of the probe table, and the virtual
// port, 0 if the pod has none.
func Explain(pod *corev1.Pod, o Options) (decisions []Decision, port int32, err error) {
	document, err := json.Marshal(pod)
	if err != nil {
		return nil, 0, fmt.Errorf("encode pod: %w", err)
	}
	return ExplainJSON(document, o)
}

// ExplainJSON is Explain for a pod or a pod template as a JSON document, which may contain unknown fields.
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
	namespace *Namespace  // nil if unknown
	pod       *corev1.Pod // pod as it was read
	patch     patch       // changes of the pod
	unknown   unknownFields
	handlers  []handler
	selection Selection
	settings  settings
	// ofNamespace has the namespace's resources for the sidecar, and resources the chosen ones.
	ofNamespace demands
	resources   corev1.ResourceRequirements
	mesh        string
	earlier     *earlier // nil for a pod without a sidecar
	form        Form
	used        map[int32]string // the pod's ports, and their users
	mode        mesh.ProbesMode
	enabled     bool            // probes are answered in the applications' place
	gateway     bool            // incoming connections are not redirected
	cni         bool            // the CNI plugin redirects connections, there is no kuma-init
	guarded     bool            // liveness probes that fail wait until a restart is granted
	guardedExec bool            // exec probes are guarded, too
	context     probeContext    // the liveness probes in the annotation of a guarded pod
	port        int32           // the virtual port, or 0
	metricsPort int32           // the port for Prometheus, or 0
	table       mesh.ProbeTable // of the probes and hooks that the agent answers for the applications
	warnings    []string

	encodedTable       string
	encodedRedirection string
}

// inject computes the changes of a pod, which it only reads. The options must be complete. After an error the patch is
// incomplete.
func inject(pod *corev1.Pod, unknown unknownFields, ns *Namespace, o *Options) (*injection, error) {
	in := &injection{options: o, namespace: ns, pod: pod, unknown: unknown}
	if err := in.prepare(); err != nil {
		return in, err
	}
	if !in.selection.Injected {
		if ns != nil { // a pod in a file remains unchanged
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
			in.addHelper(in.handlers[i], *d.Probe)
		} else {
			in.removeNewField(in.handlers[i])
		}
		in.setNumbers(in.handlers[i], d)
	}
	if err := in.encodeRedirection(); err != nil {
		return in, err
	}
	if in.earlier == nil {
		in.addSidecar()
	} else {
		in.updateSidecar()
	}
	in.warnOtherMesh()
	in.warnSharedUser()
	in.warnPlaintext()
	in.warnServerFirst()
	in.warnConnects()
	if ns != nil && !in.cni {
		if why := ns.podSecurity(); why != "" {
			in.warn("%s", why)
		}
	}
	return in, in.setMetadata()
}

// updateSidecar adapts an earlier injection to changes of the pod by other webhooks.
func (in *injection) updateSidecar() {
	in.setTable()
	if in.perPort() {
		in.setArguments()
	}
	in.setGuarded()
	if in.cni {
		in.setRedirection()
	}
	in.orderContainers()
}

// prepare reads and checks the pod. The error joins all problems.
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
		return errors.Join(append(errs, err)...) // the next steps depend on the mesh
	}
	in.chooseGateway()
	in.form = in.options.Sidecar
	if in.earlier != nil {
		in.form = in.earlier.form
	}
	if err := in.chooseCNI(); err != nil {
		errs = append(errs, err)
	}
	if err := in.chooseMesh(); err != nil {
		errs = append(errs, err)
	}
	if err := in.chooseGuarded(); err != nil {
		errs = append(errs, err)
	}
	if err := in.chooseMode(); err != nil {
		return errors.Join(append(errs, err)...) // the ports depend on the mode
	}
	return errors.Join(append(errs, in.preparePorts())...)
}

// chooseMesh uses the pod's mesh, then its namespace's, then the default. An injected pod keeps its mesh.
func (in *injection) chooseMesh() (err error) {
	in.mesh = in.settings.mesh
	if in.earlier != nil && in.earlier.mesh != "" {
		if in.mesh != "" && in.mesh != in.earlier.mesh {
			return fmt.Errorf("%s: %q: %s already has %s%s", mesh.LabelMesh, in.mesh, mesh.ContainerSidecar, meshFlag, in.earlier.mesh)
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

// warn adds a warning of one line: it replaces line breaks in the pod's strings.
func (in *injection) warn(format string, args ...any) {
	words := strings.FieldsFunc(fmt.Sprintf(format, args...), unicode.IsControl)
	in.warnings = append(in.warnings, strings.Join(words, " "))
}

// maxRecorded limits the annotation with warnings, in bytes. All annotations of an object may have 256 KiB.
const maxRecorded = 32 << 10

// recordedWarnings returns the warnings of this and earlier injections, one per line. They are recorded because users
// do not see a webhook's warnings to a controller that creates pods, and because a second injection does not repeat the
// first one's warnings.
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
			if warning = "more warnings are not recorded"; slices.Contains(lines, warning) {
				continue
			}
		}
		lines = append(lines, warning)
		recorded = strings.Join(lines, "\n")
	}
	return recorded
}

// checkNames returns an error if containers have no names or the same name. The API server also rejects such a pod.
func checkNames(pod *corev1.Pod) error {
	names := map[string]bool{}
	var errs []error
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			switch {
			case c.Name == "":
				errs = append(errs, errors.New("spec.containers: a container has no name"))
			case names[c.Name]:
				errs = append(errs, fmt.Errorf("containers[%s]: two containers have this name", c.Name))
			}
			names[c.Name] = true
		}
	}
	if len(pod.Spec.Containers) == 0 {
		errs = append(errs, errors.New("spec.containers: must not be empty"))
	}
	return errors.Join(errs...)
}

// addSidecar adds Sonde's containers and volumes. A native sidecar, preceded by kuma-init unless the CNI plugin
// replaces it, is before all other init containers, so that all of them have network and probes. An ordinary sidecar is
// the first container; kuma-init is then the last init container, since no container has network between the two.
func (in *injection) addSidecar() {
	spec := &in.pod.Spec
	in.chooseResources()
	sidecar, volumes := in.sidecar(), in.volumes()
	in.nameControlPlane()
	switch {
	case in.cni:
		insert(&in.patch, pathInitContainers, len(spec.InitContainers), "0", sidecar)
	case in.form == Native:
		insert(&in.patch, pathInitContainers, len(spec.InitContainers), "0", in.initContainer(), sidecar)
	default:
		insert(&in.patch, pathInitContainers, len(spec.InitContainers), "-", in.initContainer())
		insert(&in.patch, pathContainers, len(spec.Containers), "0", sidecar)
	}
	insert(&in.patch, pathVolumes, len(spec.Volumes), "-", volumes...)
	if in.form == Container && spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyAlways {
		in.warn("spec.restartPolicy: %s: this pod never completes, because %s is an ordinary container and runs forever: a native sidecar ends with the other containers",
			spec.RestartPolicy, mesh.ContainerSidecar)
	}
}

// setMetadata writes the mesh into a label, by which the control plane selects pods, and other decisions into
// annotations, unless the user has set them.
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

// recordWarnings sets the annotation with the warnings if it changes.
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
