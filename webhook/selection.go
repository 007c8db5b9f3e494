package webhook

import (
	"cmp"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Namespace is what injection has to know of a pod's namespace.
type Namespace struct {
	Name   string
	Labels map[string]string
	// Annotations, of which sonde.dev/virtual-probes-mode, sonde.dev/guarded-liveness, sonde.dev/meshes and those for the resources of the sidecar are read.
	Annotations map[string]string
}

// Selection says whether a pod gets a sidecar.
type Selection struct {
	Injected bool
	// Why it gets none: "kuma.io/sidecar-injection is disabled". "" if it gets one, or if nothing asks for one.
	Why string
	// Warn says that Why is something that the user may not expect.
	Warn bool
}

// Warning is for the author of a pod without a sidecar, "" for none.
func (s *Selection) Warning() string {
	if !s.Warn {
		return ""
	}
	return s.Why + notInjected
}

// notInjected ends the warning about a pod that is left alone.
const notInjected = ": not injected"

// Select decides whether a pod gets a sidecar. The pod's own label or annotation wins over the label of its namespace. ns is nil
// where the namespace is not known, as in a file: then a pod gets one unless it says otherwise. The error says which label or
// annotation has a wrong value.
func Select(ns *Namespace, pod *corev1.Pod, o Options) (Selection, error) {
	o.setDefaults()
	return o.selectPod(ns, pod)
}

func (o *Options) selectPod(ns *Namespace, pod *corev1.Pod) (Selection, error) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		// The node runs what is in its file, whatever the API says.
		return Selection{Why: "it is the mirror of a static pod"}, nil
	}
	asked, key, err := o.askedByPod(&pod.ObjectMeta)
	if err == nil && ns != nil {
		if ns.Name == metav1.NamespaceSystem || ns.Name == o.ControlPlaneNamespace {
			return Selection{Why: "no pod of namespace " + ns.Name + " is injected", Warn: asked != nil && *asked}, nil
		}
		if asked == nil {
			asked, key, err = o.askedByNamespace(ns)
		}
		if asked == nil && err == nil {
			return Selection{}, nil
		}
	}
	return selectAsked(pod, asked, key, err)
}

// selectAsked decides about a pod for which key asks, or for which an error says what is wrong with that. asked is nil where the namespace is not known.
func selectAsked(pod *corev1.Pod, asked *bool, key string, err error) (Selection, error) {
	why := podspec.Unsupported(&pod.Spec)
	switch {
	case err != nil && why == "": // about other pods the API server does not ask, whatever their labels say
		return Selection{}, err
	case err == nil && asked != nil && !*asked:
		return Selection{Why: key + " is disabled"}, nil
	}
	if why = cmp.Or(why, inOtherMesh(pod)); why != "" {
		return Selection{Why: why, Warn: true}, nil
	}
	return Selection{Injected: true}, nil
}

// inOtherMesh returns why a pod is left to another mesh, "" if none has it. One that has our sidecar keeps it.
func inOtherMesh(pod *corev1.Pod) string {
	if podspec.IsInjected(&pod.Spec) {
		return ""
	}
	for _, f := range podspec.Foreigners(pod) {
		return f.By + ": it has a sidecar of " + f.Mesh + ", which takes its connections"
	}
	return ""
}

// warnOtherMesh warns of a pod into which another mesh has put its sidecar after ours.
func (in *injection) warnOtherMesh() {
	for _, f := range podspec.Foreigners(in.pod) {
		in.warn("%s: it has a sidecar of %s, too, and only one of the two gets its connections: let one mesh inject it", f.By, f.Mesh)
	}
}

// askedByPod returns what the labels and annotations of a pod ask for, and by which key, nil if they do not say.
func (o *Options) askedByPod(meta *metav1.ObjectMeta) (asked *bool, by string, err error) {
	for _, key := range o.InjectionKeys() {
		label, isLabel := meta.Labels[key]
		value, isAnnotation := meta.Annotations[key]
		var byLabel *bool
		var errs []error
		if isLabel {
			if byLabel, err = parseSwitch(label); err != nil {
				errs = append(errs, &mesh.FieldError{Field: labelField(key), Value: label, Err: err})
			}
		}
		if isAnnotation {
			if asked, err = parseSwitch(value); err != nil {
				errs = append(errs, &mesh.FieldError{Field: annotationField(key), Value: value, Err: err})
			}
		}
		if byLabel != nil && asked != nil && *byLabel != *asked {
			errs = append(errs, contradiction(key, value, label))
		}
		if isLabel || isAnnotation {
			return cmp.Or(byLabel, asked), key, errors.Join(errs...)
		}
	}
	return nil, "", nil
}

// askedByNamespace returns what the labels of a namespace ask for, and by which key, nil if they do not say.
func (o *Options) askedByNamespace(ns *Namespace) (asked *bool, by string, err error) {
	for _, key := range o.InjectionKeys() {
		if value, ok := ns.Labels[key]; ok {
			if asked, err = parseSwitch(value); err != nil {
				err = &mesh.FieldError{Field: ns.labelField(key), Value: value, Err: err}
			}
			return asked, key, err
		}
	}
	return nil, "", nil
}

func (ns *Namespace) labelField(key string) string {
	return "namespace " + ns.Name + ": " + labelField(key)
}

// mesh returns the mesh that the namespace names, "" if it names none.
func (ns *Namespace) mesh() (string, error) {
	name := ns.Labels[mesh.LabelMesh]
	if name != "" && !isMeshName(name) {
		return "", &mesh.FieldError{Field: ns.labelField(mesh.LabelMesh), Value: name, Allowed: meshNameRule}
	}
	return name, nil
}

// labelPodSecurity is the level of Pod Security that a namespace enforces.
// Source: k8s.io/pod-security-admission api/constants.go.
const labelPodSecurity = "pod-security.kubernetes.io/enforce"

// podSecurity returns why Pod Security will refuse each injected pod of the namespace, "" if it will not.
func (ns *Namespace) podSecurity() string {
	level := ns.Labels[labelPodSecurity]
	if level != "baseline" && level != "restricted" {
		return ""
	}
	return fmt.Sprintf("namespace %s: %s is %s: %s needs the capability NET_ADMIN, for which Pod Security refuses this pod",
		ns.Name, labelPodSecurity, level, mesh.ContainerInit)
}
