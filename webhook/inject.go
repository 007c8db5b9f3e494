// Package webhook injects the sidecar into pods, and rewrites their probes and hooks so that the agent answers them.
package webhook

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	annotationDefaultContainer = "kubectl.kubernetes.io/default-container"
	virtualProbesFlag          = "--virtual-probes-port="
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
	in, err := newInjection(pod, o)
	if err != nil || in.skip {
		return in.pod, in.warnings, err
	}
	handlers := handlersOf(in.pod)
	decisions, table, err := in.decideAll(handlers)
	if err != nil {
		return nil, nil, err
	}
	for i, d := range decisions {
		if d.Warn {
			in.warn("%s: %s", handlers[i].field(), d.Why)
		}
		if d.Probe != nil && in.rewritten(handlers[i]) == nil {
			in.rewrite(handlers[i], *d.Probe)
		}
	}
	if in.earlier == nil {
		in.addSidecar(table)
	} else {
		in.setTable(table)
	}
	in.orderContainers()
	in.annotate()
	in.warnSharedUser()
	in.recordWarnings()
	return in.pod, in.warnings, nil
}

// Explain returns what Inject decides about each probe and hook, in the order of the probe table, and the virtual port, 0
// if the pod has none.
func Explain(pod *corev1.Pod, o Options) (decisions []Decision, port int32, err error) {
	in, err := newInjection(pod, o)
	if err != nil {
		return nil, 0, err
	}
	if !in.skip {
		decisions, _, err = in.decideAll(handlersOf(in.pod))
		return decisions, in.port, err
	}
	for _, h := range handlersOf(in.pod) {
		decisions = append(decisions, Decision{
			Container: h.container.Name, Type: h.kind, Written: h.written(), Why: strings.Join(in.warnings, "; "),
		})
	}
	return decisions, 0, nil
}

// injection is the state of the injection of one pod.
type injection struct {
	options  Options
	pod      *corev1.Pod // a copy
	settings settings
	earlier  *earlier // nil for a pod without a sidecar
	form     Form
	port     int32 // the virtual port; 0 if probes are left as they are
	skip     bool  // the pod gets no sidecar
	warnings []string
}

func newInjection(pod *corev1.Pod, o Options) (in *injection, err error) {
	in = &injection{options: o}
	in.options.setDefaults()
	if err := in.options.Validate(); err != nil {
		return in, err
	}
	copied := pod.DeepCopy()
	why, err := skipReason(copied)
	if err != nil {
		return in, err
	}
	if why != "" {
		in.pod, in.skip = copied, true
		in.warn("%s: not injected", why)
		return in, nil
	}
	if err := in.prepare(copied); err != nil {
		return in, err
	}
	return in, nil
}

// prepare reads and checks the pod. in.pod is nil if it returns an error.
func (in *injection) prepare(pod *corev1.Pod) error {
	var err error
	if in.settings, in.warnings, err = readSettings(&pod.ObjectMeta); err != nil {
		return err
	}
	if err := checkNames(pod); err != nil {
		return err
	}
	if in.earlier, err = findEarlier(pod); err != nil {
		return err
	}
	in.form = in.options.Sidecar
	if in.earlier != nil {
		in.form = in.earlier.form
	}
	in.pod = pod
	if in.port, err = in.choosePort(); err != nil {
		in.pod = nil
	}
	return err
}

// warn adds a warning. It is one line, whatever strings of the pod are in it.
func (in *injection) warn(format string, args ...any) {
	words := strings.FieldsFunc(fmt.Sprintf(format, args...), unicode.IsControl)
	in.warnings = append(in.warnings, strings.Join(words, " "))
}

// recordWarnings adds the warnings to those of earlier injections, one per line, in an annotation: nobody sees what an admission
// webhook tells a controller that makes pods. A second injection does not find again what only the first one decides.
func (in *injection) recordWarnings() {
	var lines []string
	if recorded := in.pod.Annotations[mesh.AnnotationInjectionWarnings]; recorded != "" {
		lines = strings.Split(recorded, "\n")
	}
	for _, warning := range in.warnings {
		if !slices.Contains(lines, warning) {
			lines = append(lines, warning)
		}
	}
	if len(lines) > 0 {
		metav1.SetMetaDataAnnotation(&in.pod.ObjectMeta, mesh.AnnotationInjectionWarnings, strings.Join(lines, "\n"))
	}
}

// skipReason returns why the pod gets no sidecar, "" if it gets one.
func skipReason(pod *corev1.Pod) (string, error) {
	by, err := disabledBy(&pod.ObjectMeta)
	switch {
	case err != nil:
		return "", err
	case by != "":
		return by + " is disabled", nil
	case pod.Spec.HostNetwork:
		return "spec.hostNetwork: redirection would be that of the whole node", nil
	case pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows:
		return "spec.os: there is no sidecar for Windows", nil
	case pod.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows):
		return "spec.nodeSelector: there is no sidecar for Windows", nil
	}
	return "", nil
}

// checkNames returns an error if containers have no names or the same name. The API server would refuse such a pod, too.
func checkNames(pod *corev1.Pod) error {
	var names []string
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			if c.Name == "" {
				return errors.New("spec.containers: there is one without a name")
			}
			if slices.Contains(names, c.Name) {
				return fmt.Errorf("containers[%s]: two containers have this name", c.Name)
			}
			names = append(names, c.Name)
		}
	}
	if len(pod.Spec.Containers) == 0 {
		return errors.New("spec.containers: there is none")
	}
	return nil
}

// addSidecar adds our containers and volumes.
func (in *injection) addSidecar(table string) {
	spec := &in.pod.Spec
	spec.InitContainers = append(spec.InitContainers, in.initContainer())
	if in.form == Native {
		spec.InitContainers = append(spec.InitContainers, in.sidecar(table))
	} else {
		spec.Containers = append(spec.Containers, in.sidecar(table))
	}
	spec.Volumes = append(spec.Volumes, in.volumes()...)
	in.usePodResources()
	if in.form == Container && spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyAlways {
		in.warn("spec.restartPolicy: %s: this pod never completes, as an ordinary container %s runs for ever: the native form ends with the others",
			spec.RestartPolicy, mesh.ContainerSidecar)
	}
}

// orderContainers moves our containers to their places. A native sidecar, with kuma-init before it, comes before all other
// containers, so that all of them have network and probes. An ordinary one is the first of the containers; kuma-init is
// then the last init container, since no container has network between the two.
func (in *injection) orderContainers() {
	spec := &in.pod.Spec
	if in.form == Native {
		spec.InitContainers = moveToFront(moveToFront(spec.InitContainers, mesh.ContainerSidecar), mesh.ContainerInit)
		return
	}
	spec.Containers = moveToFront(spec.Containers, mesh.ContainerSidecar)
	if i := indexOf(spec.InitContainers, mesh.ContainerInit); i >= 0 {
		c := spec.InitContainers[i]
		spec.InitContainers = append(slices.Delete(spec.InitContainers, i, i+1), c)
	}
}

// moveToFront moves the container with that name to the front, if there is one.
func moveToFront(containers []corev1.Container, name string) []corev1.Container {
	i := indexOf(containers, name)
	if i <= 0 {
		return containers
	}
	c := containers[i]
	return slices.Insert(slices.Delete(containers, i, i+1), 0, c)
}

func indexOf(containers []corev1.Container, name string) int {
	return slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name })
}

// annotate adds annotations that say what was decided, unless the user has set them.
func (in *injection) annotate() {
	if in.earlier != nil {
		return
	}
	if in.pod.Annotations == nil {
		in.pod.Annotations = map[string]string{}
	}
	set := func(key, value string) {
		if _, ok := in.pod.Annotations[key]; !ok {
			in.pod.Annotations[key] = value
		}
	}
	if in.port != 0 {
		set(mesh.AnnotationVirtualProbes, "enabled")
		set(mesh.AnnotationVirtualProbesPort, number(in.port))
	}
	if _, labelled := in.pod.Labels[mesh.LabelMesh]; !labelled {
		set(mesh.LabelMesh, in.options.Mesh)
	}
	if in.options.ControlPlaneCA != "" {
		in.pod.Annotations[mesh.AnnotationControlPlaneCA] = in.options.ControlPlaneCA
	}
	for _, c := range in.pod.Spec.Containers {
		if !isOurs(c.Name) {
			set(annotationDefaultContainer, c.Name)
			break
		}
	}
}

// earlier is the result of an earlier injection of a pod.
type earlier struct {
	form  Form
	port  int32 // the virtual port; 0 for none
	table mesh.ProbeTable
}

// findEarlier returns the earlier injection of a pod, nil if there is none. It returns an error if containers have our names
// but are not ours: other meshes use the same names.
func findEarlier(pod *corev1.Pod) (*earlier, error) {
	e := &earlier{form: Container}
	c := sidecarOf(pod, Container)
	if c == nil {
		e.form = Native
		c = sidecarOf(pod, Native)
	}
	if c == nil {
		return nil, checkNamesFree(pod)
	}
	foreign := fmt.Errorf("containers[%s]: this container is not one that Sonde has put there", c.Name)
	if e.form == Native && !isNativeSidecar(c) {
		return nil, foreign
	}
	env := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == mesh.EnvProbeTable })
	arg := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, virtualProbesFlag) })
	if env < 0 || arg < 0 {
		return nil, foreign
	}
	value := strings.TrimPrefix(c.Args[arg], virtualProbesFlag)
	port, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("containers[%s].args: %q: %w", c.Name, c.Args[arg], errPort)
	}
	e.port = int32(port)
	if e.table, _, err = mesh.ParseProbeTable(c.Env[env].Value); err != nil {
		return nil, fmt.Errorf("containers[%s].env: %s: %w", c.Name, mesh.EnvProbeTable, err)
	}
	return e, nil
}

// sidecarOf returns the container kuma-sidecar of that form, nil if there is none.
func sidecarOf(pod *corev1.Pod, form Form) *corev1.Container {
	containers := pod.Spec.Containers
	if form == Native {
		containers = pod.Spec.InitContainers
	}
	if i := indexOf(containers, mesh.ContainerSidecar); i >= 0 {
		return &containers[i]
	}
	return nil
}

// checkNamesFree returns an error if the names of our containers or volumes are in use.
func checkNamesFree(pod *corev1.Pod) error {
	if indexOf(pod.Spec.InitContainers, mesh.ContainerInit) >= 0 || indexOf(pod.Spec.Containers, mesh.ContainerInit) >= 0 {
		return fmt.Errorf("containers[%s]: this container is not one that Sonde has put there", mesh.ContainerInit)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Name == mesh.VolumeIdentity || v.Name == volumeWork {
			return fmt.Errorf("spec.volumes[%s]: this name is kept for the sidecar", v.Name)
		}
	}
	return nil
}

// setTable replaces the probe table of an earlier injection in the sidecar's environment.
func (in *injection) setTable(text string) {
	c := sidecarOf(in.pod, in.form)
	for i := range c.Env {
		if c.Env[i].Name == mesh.EnvProbeTable && c.Env[i].Value != text {
			c.Env[i].Value = text
		}
	}
}
